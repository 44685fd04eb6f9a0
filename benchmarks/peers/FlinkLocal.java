import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** What the Java jobs share: a local cluster of one JVM, its input, and the rate from half of the events on. */
class FlinkLocal {
  static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
  static final AtomicLong EVENTS = new AtomicLong();
  static final AtomicLong FIRST_MS = new AtomicLong();
  static final AtomicLong LAST_MS = new AtomicLong();
  static final AtomicLong CPU_AT_HALF = new AtomicLong();
  static final AtomicLong CPU_AT_END = new AtomicLong();
  static final AtomicLong HALF = new AtomicLong();

  static StreamExecutionEnvironment environment(String backend, String checkpoints) {
    Configuration settings = new Configuration();
    settings.setString("state.backend.type", backend);
    settings.setString("execution.checkpointing.interval", "10s");
    settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
    settings.setString("execution.checkpointing.storage", "filesystem");
    settings.setString("execution.checkpointing.dir", "file://" + checkpoints);
    settings.setString("execution.checkpointing.incremental", "true");
    settings.setString("io.tmp.dirs", checkpoints + "/local");
    settings.setString("taskmanager.memory.managed.size", "1g");
    settings.setString("restart-strategy.type", "none");
    StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
    env.getConfig().enableObjectReuse();
    return env;
  }

  static DataStream<String> lines(StreamExecutionEnvironment env, String name, String... files) {
    Path[] paths = Stream.of(files).map(Path::new).toArray(Path[]::new);
    FileSource<String> source = FileSource.forRecordStreamFormat(new TextLineInputFormat(), paths).build();
    return env.fromSource(source, WatermarkStrategy.noWatermarks(), name);
  }

  /** Decodes lines, and notes the processor time after half of the events. */
  abstract static class Decoder<T> extends RichMapFunction<String, T> {
    static final int STEP = 1000;
    final long half;
    transient int n;

    Decoder(long events) {
      half = events / 2;
    }

    abstract T decode(String line) throws Exception;

    @Override
    public T map(String line) throws Exception {
      if (n++ == 0) {
        FIRST_MS.compareAndSet(0, System.currentTimeMillis());
      }
      if (n % STEP == 0) {
        long all = EVENTS.addAndGet(STEP);
        if (all >= half && HALF.compareAndSet(0, all)) {
          CPU_AT_HALF.set(SYSTEM.getProcessCpuTime());
        }
      }
      return decode(line);
    }

    @Override
    public void close() {
      EVENTS.addAndGet(n % STEP);
      n = 0;
    }
  }

  /** A subtask has had its last result. */
  static void ended() {
    LAST_MS.accumulateAndGet(System.currentTimeMillis(), Math::max);
    CPU_AT_END.accumulateAndGet(SYSTEM.getProcessCpuTime(), Math::max);
  }

  /** Prints the figures as JSON, beside the job's own, which are members of an object. */
  static void print(String own) {
    System.out.println(String.format(
        Locale.ROOT,
        "{\"events\": %d, %s, \"busy_s\": %s, \"cpu_events\": %d, \"cpu_s\": %s}",
        EVENTS.get(), own, (LAST_MS.get() - FIRST_MS.get()) / 1000.0,
        EVENTS.get() - HALF.get(), (CPU_AT_END.get() - CPU_AT_HALF.get()) / 1e9));
  }
}
