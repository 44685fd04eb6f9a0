import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** The workloads on Flink's Java API, in a local cluster of one JVM: WORKLOAD BACKEND DATA TALLIES CHECKPOINTS. */
public class FlinkJob {
  static final int THRESHOLD = 8;
  static final int LAST = 10;
  static final long PERIOD_MS = 600_000;
  /** When the first event was aggregated in any subtask. */
  static final AtomicLong FIRST_MS = new AtomicLong();

  /** A line of the data; a POJO for Flink's serializer. */
  public static class Event {
    public long user;
    public double amount;
    public long timestamp;
  }

  /** What one instance of a function counts. */
  static class Tally {
    final String directory;
    long n;
    long firstMs;
    long lastMs;
    long results;
    long periods;
    double sum;

    Tally(String directory) {
      this.directory = directory;
    }

    void event() {
      now();
      n++;
    }

    void now() {
      lastMs = System.currentTimeMillis();
      if (firstMs == 0) {
        firstMs = lastMs;
      }
    }

    void write(String resultsName, String sumName) throws Exception {
      if (firstMs == 0) {
        return;
      }
      String counts = String.format(
          Locale.ROOT, "{\"n\": %d, \"%s\": %d, \"%s\": %s, \"periods\": %d}",
          n, resultsName, results, sumName, Double.toString(sum), periods);
      String text = String.format(
          Locale.ROOT, "{\"first\": %s, \"last\": %s, \"counts\": %s}", firstMs / 1000.0, lastMs / 1000.0, counts);
      Files.writeString(Path.of(directory, UUID.randomUUID() + ".json"), text);
    }
  }

  static class Parse extends RichMapFunction<String, Event> {
    @Override
    public Event map(String line) {
      int first = line.indexOf(',');
      int second = line.indexOf(',', first + 1);
      Event event = new Event();
      event.user = Long.parseLong(line.substring(0, first));
      event.amount = Double.parseDouble(line.substring(first + 1, second));
      event.timestamp = Long.parseLong(line.substring(second + 1));
      return event;
    }
  }

  static class Fraud extends KeyedProcessFunction<Long, Event, Tuple3<Long, Long, Double>> {
    final String tallies;
    transient ValueState<Tuple2<Long, Long>> period;
    transient ListState<Double> last;
    transient Tally tally;

    Fraud(String tallies) {
      this.tallies = tallies;
    }

    @Override
    public void open(OpenContext context) {
      period = getRuntimeContext().getState(new ValueStateDescriptor<>("period", Types.TUPLE(Types.LONG, Types.LONG)));
      last = getRuntimeContext().getListState(new ListStateDescriptor<>("last", Types.DOUBLE));
      tally = new Tally(tallies);
    }

    @Override
    public void processElement(Event event, Context context, Collector<Tuple3<Long, Long, Double>> out)
        throws Exception {
      tally.event();
      List<Double> amounts = new ArrayList<>(LAST + 1);
      Tuple2<Long, Long> current = period.value();
      if (current == null || event.timestamp >= current.f1) {
        current = Tuple2.of(0L, event.timestamp + PERIOD_MS);
        context.timerService().registerEventTimeTimer(current.f1);
        tally.periods++;
      } else {
        last.get().forEach(amounts::add);
      }
      current.f0++;
      amounts.add(event.amount);
      if (amounts.size() > LAST) {
        amounts.remove(0);
      }
      period.update(current);
      last.update(amounts);
      if (current.f0 >= THRESHOLD) {
        double total = 0;
        for (double amount : amounts) {
          total += amount;
        }
        tally.results++;
        tally.sum += total;
        out.collect(Tuple3.of(event.user, current.f0, total));
      }
    }

    @Override
    public void onTimer(long timestamp, OnTimerContext context, Collector<Tuple3<Long, Long, Double>> out)
        throws Exception {
      tally.now();
      Tuple2<Long, Long> current = period.value();
      if (current != null && current.f1 == timestamp) {
        period.clear();
        last.clear();
      }
    }

    @Override
    public void close() throws Exception {
      if (tally != null) {
        tally.write("alerts", "alert_sum");
      }
    }
  }

  static class Pass extends KeyedProcessFunction<Long, Event, Long> {
    final String tallies;
    transient Tally tally;

    Pass(String tallies) {
      this.tallies = tallies;
    }

    @Override
    public void open(OpenContext context) {
      tally = new Tally(tallies);
    }

    @Override
    public void processElement(Event event, Context context, Collector<Long> out) {
      tally.event();
    }

    @Override
    public void close() throws Exception {
      if (tally != null) {
        tally.write("alerts", "alert_sum");
      }
    }
  }

  static class SumAndCount implements AggregateFunction<Event, Tuple2<Double, Long>, Tuple2<Double, Long>> {
    @Override
    public Tuple2<Double, Long> createAccumulator() {
      return Tuple2.of(0.0, 0L);
    }

    @Override
    public Tuple2<Double, Long> add(Event event, Tuple2<Double, Long> accumulator) {
      if (FIRST_MS.get() == 0) {
        FIRST_MS.compareAndSet(0, System.currentTimeMillis());
      }
      accumulator.f0 += event.amount;
      accumulator.f1++;
      return accumulator;
    }

    @Override
    public Tuple2<Double, Long> getResult(Tuple2<Double, Long> accumulator) {
      return accumulator;
    }

    @Override
    public Tuple2<Double, Long> merge(Tuple2<Double, Long> a, Tuple2<Double, Long> b) {
      return Tuple2.of(a.f0 + b.f0, a.f1 + b.f1);
    }
  }

  /** Counts results; the clock begins with the first event, which is the aggregate's. */
  static class Emit
      extends ProcessWindowFunction<Tuple2<Double, Long>, Tuple4<Long, Long, Double, Long>, Long, TimeWindow> {
    final String tallies;
    transient Tally tally;

    Emit(String tallies) {
      this.tallies = tallies;
    }

    @Override
    public void open(OpenContext context) {
      tally = new Tally(tallies);
    }

    @Override
    public void process(
        Long user, Context context, Iterable<Tuple2<Double, Long>> aggregated,
        Collector<Tuple4<Long, Long, Double, Long>> out) {
      Tuple2<Double, Long> result = aggregated.iterator().next();
      tally.now();
      tally.results++;
      tally.sum += result.f0;
      tally.n += result.f1;
      out.collect(Tuple4.of(user, context.window().getStart(), result.f0, result.f1));
    }

    @Override
    public void close() throws Exception {
      if (tally != null) {
        tally.firstMs = FIRST_MS.get();
        tally.write("windows", "total");
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    String workload = arguments[0];
    String data = arguments[2];
    String tallies = arguments[3];
    StreamExecutionEnvironment env = FlinkLocal.environment(arguments[1], arguments[4]);
    KeyedStream<Event, Long> byUser = FlinkLocal.lines(env, "csv", data + "/part-0.csv", data + "/part-1.csv")
        .map(new Parse())
        .returns(Event.class)
        .assignTimestampsAndWatermarks(
            WatermarkStrategy.<Event>forBoundedOutOfOrderness(Duration.ofSeconds(5))
                .withTimestampAssigner((event, recorded) -> event.timestamp))
        .keyBy(event -> event.user, Types.LONG);
    switch (workload) {
      case "fraud" -> byUser.process(new Fraud(tallies)).sinkTo(new DiscardingSink<>());
      case "window" -> byUser.window(TumblingEventTimeWindows.of(Duration.ofMinutes(1)))
          .aggregate(new SumAndCount(), new Emit(tallies)).sinkTo(new DiscardingSink<>());
      default -> byUser.process(new Pass(tallies)).sinkTo(new DiscardingSink<>());
    }
    env.execute(workload);
    System.exit(0);
  }
}
