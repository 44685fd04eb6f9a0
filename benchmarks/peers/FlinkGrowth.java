import java.io.IOException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * benchmarks/growth.py on Flink's Java API, in a local cluster of one JVM: KEYS POINTS DIRECTORY [read].
 *
 * <p>Every second event is the first one of a new key; the others read and write existing keys, chosen uniformly: the
 * count, and with "read" also the kilobyte. Prints what an event cost, point by point.
 */
public class FlinkGrowth {
  static final int STEP = 100;
  static final AtomicLong EVENTS = new AtomicLong();
  static final AtomicLong KEYS = new AtomicLong();

  /** The key of a number. The source reads two stretches at the same time; each has its own keys. */
  static long keyOf(long number, long stretch) {
    long begin = number / stretch * stretch;
    long newest = (number - begin) / 2;
    boolean isNew = (number - begin) % 2 == 0;
    return begin + (isNew ? newest : Math.multiplyHigh(number * 0x9E3779B97F4A7C15L >>> 1, 2 * (newest + 1)));
  }

  static class Rewrite extends FlinkKilobytes {
    final boolean read;
    transient long events;
    transient long keys;

    Rewrite(boolean read) {
      this.read = read;
    }

    @Override
    public void processElement(Long number, Context context, Collector<Long> out) throws Exception {
      long had = counted();
      if (had == 0) {
        keys++;
      } else if (read && value.value().length != VALUE_BYTES) {
        throw new IllegalStateException("event " + number + " finds no kilobyte");
      }
      count.update(had + 1);
      value.update(kilobyte(number));
      out.collect(had);
      if (++events == STEP) {
        tell();
      }
    }

    @Override
    public void close() {
      tell();
    }

    void tell() {
      EVENTS.addAndGet(events);
      KEYS.addAndGet(keys);
      events = keys = 0;
    }
  }

  /** The figures since the last point. */
  static class Watch {
    final Path directory;
    final List<String> points = new ArrayList<>();
    long events;
    long at = System.nanoTime();
    long cpu = FlinkLocal.SYSTEM.getProcessCpuTime();

    Watch(Path directory) {
      this.directory = directory;
    }

    void point() throws IOException {
      long seen = EVENTS.get();
      long now = System.nanoTime();
      long used = FlinkLocal.SYSTEM.getProcessCpuTime();
      double each = 1000.0 * (seen - events);
      points.add(String.format(
          Locale.ROOT,
          "{\"events\": %d, \"us_per_event\": %.2f, \"cpu_us_per_event\": %.2f, \"rss_mb\": %d, \"disk_mb\": %d}",
          seen, (now - at) / each, (used - cpu) / each, resident() >> 10, size(directory) >> 20));
      events = seen;
      at = now;
      cpu = used;
    }
  }

  /** Resident memory in KiB. */
  static long resident() throws IOException {
    for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
      if (line.startsWith("VmRSS:")) {
        return Long.parseLong(line.replaceAll("\\D", ""));
      }
    }
    throw new IllegalStateException("no VmRSS in /proc/self/status");
  }

  static long size(Path directory) throws IOException {
    AtomicLong sum = new AtomicLong();
    Files.walkFileTree(directory, new SimpleFileVisitor<>() {
      @Override
      public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) {
        sum.addAndGet(attributes.size());
        return FileVisitResult.CONTINUE;
      }

      @Override
      public FileVisitResult visitFileFailed(Path file, IOException removed) {
        return FileVisitResult.CONTINUE;
      }

      @Override
      public FileVisitResult postVisitDirectory(Path visited, IOException removed) {
        return FileVisitResult.CONTINUE;
      }
    });
    return sum.get();
  }

  public static void main(String[] arguments) throws Exception {
    long all = 2 * Long.parseLong(arguments[0]);
    int points = Integer.parseInt(arguments[1]);
    Path directory = Path.of(arguments[2]);
    boolean read = arguments.length > 3;
    long stretch = all / 2;
    StreamExecutionEnvironment env = FlinkLocal.environment("rocksdb", directory.toString());
    env.fromSource(new NumberSequenceSource(0, all - 1), WatermarkStrategy.noWatermarks(), "numbers")
        .keyBy(number -> keyOf(number, stretch), Types.LONG)
        .process(new Rewrite(read))
        .sinkTo(new DiscardingSink<>());
    JobClient running = env.executeAsync("growth");
    while (EVENTS.get() == 0) {
      Thread.sleep(5);
    }
    long began = System.nanoTime();
    Watch watch = new Watch(directory);
    while (watch.points.size() < points) {
      if (EVENTS.get() >= all / points * (watch.points.size() + 1)) {
        watch.point();
      } else if (running.getJobStatus().get().isTerminalState()) {
        running.getJobExecutionResult().get();
        throw new IllegalStateException("the job ended after " + EVENTS.get() + " events");
      }
      Thread.sleep(5);
    }
    double seconds = (System.nanoTime() - began) / 1e9;
    running.getJobExecutionResult().get();
    System.out.println(String.format(
        Locale.ROOT, "{\"events\": %d, \"busy_s\": %.2f, \"keys\": %d, \"points\": [%s]}",
        EVENTS.get(), seconds, KEYS.get(), String.join(", ", watch.points)));
    System.exit(0);
  }
}
