import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Fills state of a kilobyte a key at parallelism 2, then changes it to 4 and 3 by native savepoints: KEYS DIRECTORY.
 *
 * <p>Prints for each change the seconds of the stop with a savepoint, those from the submission to the first results of all
 * subtasks, and what was read meanwhile. The JVM stays the same, so that it is warm.
 */
public class FlinkRescale {
  static final long PASSES = 1000;
  static final AtomicLong EVENTS = new AtomicLong();
  /** By subtask: when it had its first result. */
  static final Map<Integer, Long> FIRST_NS = new ConcurrentHashMap<>();

  static class Remember extends FlinkKilobytes {
    final long keys;
    transient boolean began;

    Remember(long keys) {
      this.keys = keys;
    }

    @Override
    public void processElement(Long number, Context context, Collector<Long> out) throws Exception {
      long had = counted();
      long before = number % (keys * PASSES / 2) / (keys / 2);
      if (had != before) {
        throw new IllegalStateException("event " + number + " finds a count of " + had + " instead of " + before);
      }
      if (had == 0) {
        value.update(kilobyte(number));
      }
      count.update(had + 1);
      out.collect(had);
      EVENTS.incrementAndGet();
      if (!began) {
        began = true;
        FIRST_NS.putIfAbsent(getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(), System.nanoTime());
      }
    }
  }

  static JobClient start(int parallelism, long keys, String directory, String savepoint) throws Exception {
    Configuration settings = new Configuration();
    settings.setString("state.backend.type", "rocksdb");
    settings.setString("execution.checkpointing.interval", "500ms");
    settings.setString("execution.checkpointing.storage", "filesystem");
    settings.setString("execution.checkpointing.dir", "file://" + directory + "/checkpoints");
    settings.setString("execution.checkpointing.incremental", "true");
    settings.setString("taskmanager.memory.managed.size", "1g");
    settings.setString("io.tmp.dirs", directory + "/local");
    settings.setString("restart-strategy.type", "none");
    if (savepoint != null) {
      settings.setString("execution.state-recovery.path", savepoint);
      settings.setString("execution.state-recovery.claim-mode", "CLAIM");
    }
    StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(parallelism, settings);
    env.setMaxParallelism(128);
    env.getConfig().enableObjectReuse();
    long half = keys * PASSES / 2;
    env.fromSource(new NumberSequenceSource(0, keys * PASSES - 1), WatermarkStrategy.noWatermarks(), "numbers")
        .uid("numbers")
        .keyBy(n -> n / half * (keys / 2) + n % (keys / 2), Types.LONG)
        .process(new Remember(keys))
        .uid("remember")
        .sinkTo(new DiscardingSink<>());
    return env.executeAsync("rescale");
  }

  static void until(JobClient client, java.util.function.BooleanSupplier condition) throws Exception {
    while (!condition.getAsBoolean()) {
      if (client.getJobStatus().get().isTerminalState()) {
        client.getJobExecutionResult().get();
        throw new IllegalStateException("the job has ended");
      }
      Thread.sleep(5);
    }
  }

  static long read() throws Exception {
    for (String line : Files.readAllLines(Path.of("/proc/self/io"))) {
      if (line.startsWith("rchar: ")) {
        return Long.parseLong(line.substring(7));
      }
    }
    throw new IllegalStateException("no rchar in /proc/self/io");
  }

  static long size(String savepoint) throws Exception {
    try (Stream<Path> files = Files.list(Path.of(savepoint.replaceFirst("^file:", "")))) {
      long sum = 0;
      for (Iterator<Path> each = files.iterator(); each.hasNext(); ) {
        sum += Files.size(each.next());
      }
      return sum;
    }
  }

  public static void main(String[] arguments) throws Exception {
    long keys = Long.parseLong(arguments[0]);
    String directory = arguments[1];
    List<String> stops = new ArrayList<>();
    List<String> starts = new ArrayList<>();
    List<String> reads = new ArrayList<>();
    long stored = 0;
    JobClient running = start(2, keys, directory, null);
    until(running, () -> EVENTS.get() >= keys * 13 / 10);
    for (int parallelism : new int[] {4, 3}) {
      long stopping = System.nanoTime();
      String savepoint =
          running.stopWithSavepoint(false, "file://" + directory + "/savepoints", SavepointFormatType.NATIVE).get();
      stored = stored == 0 ? size(savepoint) : stored;
      FIRST_NS.clear();
      long began = System.nanoTime();
      long before = read();
      running = start(parallelism, keys, directory, savepoint);
      until(running, () -> FIRST_NS.size() == parallelism);
      reads.add(String.format(Locale.ROOT, "%d", (read() - before) >> 20));
      long last = FIRST_NS.values().stream().mapToLong(Long::longValue).max().getAsLong();
      stops.add(String.format(Locale.ROOT, "%.2f", (began - stopping) / 1e9));
      starts.add(String.format(Locale.ROOT, "%.2f", (last - began) / 1e9));
      long seen = EVENTS.get();
      until(running, () -> EVENTS.get() > seen + keys / 10);
    }
    running.cancel().get();
    System.out.println(String.format(
        Locale.ROOT, "{\"state_mb\": %d, \"stop_s\": %s, \"start_s\": %s, \"read_mb\": %s}",
        stored >> 20, stops, starts, reads));
    System.exit(0);
  }
}
