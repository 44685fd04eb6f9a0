import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.PatternSelectFunction;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.streaming.api.datastream.AsyncDataStream;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.streaming.api.functions.async.RichAsyncFunction;
import org.apache.flink.streaming.api.functions.co.KeyedBroadcastProcessFunction;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.util.Collector;

/** The jobs of benchmarks/operators.py on Flink's Java API, in a local cluster of one JVM: WORKLOAD BACKEND DATA EVENTS CHECKPOINTS. */
public class FlinkOperators {
  static final int BEST = 10;
  static final AtomicLong RESULTS = new AtomicLong();
  static final AtomicLong QUARTERS = new AtomicLong();

  /** A line of the data; a POJO for Flink's serializer. */
  public static class Event {
    public long user;
    public double amount;
    public long timestamp;
  }

  /** Parses lines of CSV. */
  static class Parse extends FlinkLocal.Decoder<Event> {
    Parse(long events) {
      super(events);
    }

    @Override
    Event decode(String line) {
      int first = line.indexOf(',');
      int second = line.indexOf(',', first + 1);
      Event event = new Event();
      event.user = Long.parseLong(line.substring(0, first));
      event.amount = Double.parseDouble(line.substring(first + 1, second));
      event.timestamp = Long.parseLong(line.substring(second + 1));
      return event;
    }
  }

  /** Counts results, and adds up their amounts in quarters. */
  static class Tally extends RichMapFunction<Double, Double> {
    transient long results;
    transient long quarters;

    @Override
    public Double map(Double amount) {
      results++;
      quarters += (long) (amount * 4);
      return amount;
    }

    @Override
    public void close() {
      RESULTS.addAndGet(results);
      QUARTERS.addAndGet(quarters);
      results = quarters = 0;
      FlinkLocal.ended();
    }
  }

  static class SumAndCount implements AggregateFunction<Event, Tuple2<Double, Long>, Double> {
    @Override
    public Tuple2<Double, Long> createAccumulator() {
      return Tuple2.of(0.0, 0L);
    }

    @Override
    public Tuple2<Double, Long> add(Event event, Tuple2<Double, Long> accumulator) {
      accumulator.f0 += event.amount;
      accumulator.f1++;
      return accumulator;
    }

    @Override
    public Double getResult(Tuple2<Double, Long> accumulator) {
      return accumulator.f0;
    }

    @Override
    public Tuple2<Double, Long> merge(Tuple2<Double, Long> a, Tuple2<Double, Long> b) {
      return Tuple2.of(a.f0 + b.f0, a.f1 + b.f1);
    }
  }

  static class Pair extends ProcessJoinFunction<Event, Event, Double> {
    @Override
    public void processElement(Event left, Event right, Context context, Collector<Double> out) {
      out.collect(left.amount + right.amount);
    }
  }

  static class First extends KeyedProcessFunction<Long, Event, Double> {
    transient ValueState<Boolean> seen;

    @Override
    public void open(OpenContext context) {
      ValueStateDescriptor<Boolean> descriptor = new ValueStateDescriptor<>("seen", Types.BOOLEAN);
      descriptor.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(1)).build());
      seen = getRuntimeContext().getState(descriptor);
    }

    @Override
    public void processElement(Event event, Context context, Collector<Double> out) throws Exception {
      if (seen.value() == null) {
        seen.update(true);
        out.collect(event.amount);
      }
    }
  }

  static final MapStateDescriptor<Long, Double> RATES = new MapStateDescriptor<>("rates", Types.LONG, Types.DOUBLE);

  static class Rated extends KeyedBroadcastProcessFunction<Long, Event, Tuple2<Long, Double>, Double> {
    @Override
    public void processElement(Event event, ReadOnlyContext context, Collector<Double> out) throws Exception {
      Double rate = context.getBroadcastState(RATES).get(event.user % 64);
      out.collect(rate == null ? event.amount : event.amount * rate);
    }

    @Override
    public void processBroadcastElement(Tuple2<Long, Double> rate, Context context, Collector<Double> out)
        throws Exception {
      context.getBroadcastState(RATES).put(rate.f0, rate.f1);
    }
  }

  static class Top extends KeyedProcessFunction<Long, Event, Double> {
    transient ListState<Event> best;

    @Override
    public void open(OpenContext context) {
      best = getRuntimeContext().getListState(new ListStateDescriptor<>("best", Event.class));
    }

    @Override
    public void processElement(Event event, Context context, Collector<Double> out) throws Exception {
      List<Event> events = new ArrayList<>(BEST + 1);
      best.get().forEach(events::add);
      if (events.size() == BEST) {
        Event lowest = Collections.min(events, (one, other) -> Double.compare(one.amount, other.amount));
        if (event.amount <= lowest.amount) {
          return;
        }
        events.remove(lowest);
        out.collect(lowest.amount);
      }
      events.add(event);
      best.update(events);
      out.collect(event.amount);
    }
  }

  static class Answers extends RichAsyncFunction<Event, Double> {
    transient ScheduledExecutorService timer;

    @Override
    public void open(OpenContext context) {
      timer = Executors.newSingleThreadScheduledExecutor();
    }

    @Override
    public void asyncInvoke(Event event, ResultFuture<Double> result) {
      timer.schedule(() -> result.complete(List.of(event.amount)), 10, TimeUnit.MILLISECONDS);
    }

    @Override
    public void close() {
      timer.shutdown();
    }
  }

  static class Large implements PatternSelectFunction<Event, Double> {
    @Override
    public Double select(Map<String, List<Event>> match) {
      return match.get("large").get(0).amount;
    }
  }

  static Pattern<Event, ?> probes() {
    return Pattern.<Event>begin("probes", AfterMatchSkipStrategy.skipPastLastEvent())
        .where(SimpleCondition.of(event -> event.amount < 50)).times(3)
        .followedBy("large").where(SimpleCondition.of(event -> event.amount > 950))
        .within(Duration.ofMinutes(10));
  }

  static DataStream<Double> build(StreamExecutionEnvironment env, DataStream<Event> payments, String workload) {
    KeyedStream<Event, Long> byUser = payments.keyBy(event -> event.user, Types.LONG);
    return switch (workload) {
      case "session" -> byUser.window(EventTimeSessionWindows.withGap(Duration.ofSeconds(30)))
          .aggregate(new SumAndCount());
      case "join" -> payments.filter(event -> event.amount < 500).keyBy(event -> event.user, Types.LONG)
          .intervalJoin(payments.filter(event -> event.amount >= 500).keyBy(event -> event.user, Types.LONG))
          .between(Duration.ofSeconds(-20), Duration.ofSeconds(20)).process(new Pair());
      case "dedup" -> payments.keyBy(event -> event.user * 8 + (long) event.amount % 8, Types.LONG).process(new First());
      case "enrich" -> {
        List<Tuple2<Long, Double>> rates = new ArrayList<>();
        for (long number = 0; number < 64; number++) {
          rates.add(Tuple2.of(number, 1.0));
        }
        yield byUser.connect(env.fromData(rates, Types.TUPLE(Types.LONG, Types.DOUBLE)).broadcast(RATES))
            .process(new Rated());
      }
      case "top" -> byUser.process(new Top());
      case "pattern" -> CEP.pattern(byUser, probes()).select(new Large());
      default -> AsyncDataStream.unorderedWait(payments, new Answers(), 60, TimeUnit.SECONDS, 100);
    };
  }

  public static void main(String[] arguments) throws Exception {
    String workload = arguments[0];
    String data = arguments[2];
    StreamExecutionEnvironment env = FlinkLocal.environment(arguments[1], arguments[4]);
    DataStream<Event> payments = FlinkLocal.lines(env, "csv", data + "/part-0.csv", data + "/part-1.csv")
        .map(new Parse(Long.parseLong(arguments[3])))
        .returns(Event.class)
        .assignTimestampsAndWatermarks(
            WatermarkStrategy.<Event>forBoundedOutOfOrderness(Duration.ofSeconds(5))
                .withTimestampAssigner((event, recorded) -> event.timestamp));
    build(env, payments, workload).map(new Tally()).sinkTo(new DiscardingSink<>());
    env.execute(workload);
    FlinkLocal.print(String.format(
        Locale.ROOT, "\"results\": %d, \"sum\": %s", RESULTS.get(), Double.toString(QUARTERS.get() / 4.0)));
    System.exit(0);
  }
}
