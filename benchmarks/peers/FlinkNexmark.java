import java.io.Serializable;
import java.time.Duration;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.CoGroupFunction;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.api.java.tuple.Tuple10;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.api.java.tuple.Tuple7;
import org.apache.flink.api.java.tuple.Tuple9;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.annotation.JsonSubTypes;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.annotation.JsonTypeInfo;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectReader;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.windowing.AllWindowFunction;
import org.apache.flink.streaming.api.functions.windowing.WindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingProcessingTimeWindows;
import org.apache.flink.streaming.api.windowing.triggers.Trigger;
import org.apache.flink.streaming.api.windowing.triggers.TriggerResult;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.api.windowing.windows.Window;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;

/** Queries of benchmarks/nexmark on Flink's Java API, in a local cluster of one JVM: QUERY BACKEND DATA EVENTS CHECKPOINTS. */
public class FlinkNexmark {
  static final AtomicLong ROWS = new AtomicLong();
  static final AtomicLong CHECKSUM = new AtomicLong();
  static final Map<Long, String> DAYS = new ConcurrentHashMap<>();
  static final Duration TEN_SECONDS = Duration.ofSeconds(10);

  /** A line of the data. */
  @JsonTypeInfo(use = JsonTypeInfo.Id.NAME, property = "event")
  @JsonSubTypes({
    @JsonSubTypes.Type(value = Person.class, name = "person"),
    @JsonSubTypes.Type(value = Auction.class, name = "auction"),
    @JsonSubTypes.Type(value = Bid.class, name = "bid")
  })
  public abstract static class Event {
    public long dateTime;
    public String extra;
  }

  public static class Person extends Event {
    public long id;
    public String name;
    public String emailAddress;
    public String creditCard;
    public String city;
    public String state;
  }

  public static class Auction extends Event {
    public long id;
    public String itemName;
    public String description;
    public long initialBid;
    public long reserve;
    public long expires;
    public long seller;
    public long category;

    Tuple10<Long, String, String, Long, Long, Long, Long, Long, Long, String> whole() {
      return Tuple10.of(id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra);
    }
  }

  public static class Bid extends Event {
    public long auction;
    public long bidder;
    public long price;
    public String channel;
    public String url;

    Tuple7<Long, Long, Long, String, String, Long, String> whole() {
      return Tuple7.of(auction, bidder, price, channel, url, dateTime, extra);
    }
  }

  static final TypeInformation<Tuple7<Long, Long, Long, String, String, Long, String>> BID =
      Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.STRING, Types.STRING, Types.LONG, Types.STRING);
  static final TypeInformation<Tuple10<Long, String, String, Long, Long, Long, Long, Long, Long, String>> AUCTION =
      Types.TUPLE(Types.LONG, Types.STRING, Types.STRING, Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.LONG,
          Types.LONG, Types.STRING);

  /** Decodes lines of JSON. */
  static class Decode extends FlinkLocal.Decoder<Event> {
    transient ObjectReader reader;

    Decode(long events) {
      super(events);
    }

    @Override
    public void open(OpenContext context) {
      reader = new ObjectMapper().readerFor(Event.class);
    }

    @Override
    Event decode(String line) throws Exception {
      return reader.readValue(line);
    }
  }

  interface Checksum<T> extends Serializable {
    long of(T row);
  }

  /** Counts rows and adds up their checksums; rows that a changelog takes back are subtracted. */
  static class Tally<T> extends RichMapFunction<T, T> {
    final Checksum<T> weight;
    final Checksum<T> checksum;
    transient long rows;
    transient long sum;

    Tally(Checksum<T> weight, Checksum<T> checksum) {
      this.weight = weight;
      this.checksum = checksum;
    }

    @Override
    public T map(T row) {
      long sign = 1;
      if (row instanceof Row changed) {
        RowKind kind = changed.getKind();
        sign = kind == RowKind.INSERT || kind == RowKind.UPDATE_AFTER ? 1 : -1;
      }
      rows += sign * weight.of(row);
      sum += sign * checksum.of(row);
      return row;
    }

    @Override
    public void close() {
      ROWS.addAndGet(rows);
      CHECKSUM.addAndGet(sum);
      rows = sum = 0;
      FlinkLocal.ended();
    }
  }

  static <T> void tally(DataStream<T> rows, TypeInformation<T> type, Checksum<T> checksum) {
    tally(rows, type, row -> 1, checksum);
  }

  static <T> void tally(DataStream<T> rows, TypeInformation<T> type, Checksum<T> weight, Checksum<T> checksum) {
    rows.map(new Tally<>(weight, checksum)).returns(type).sinkTo(new DiscardingSink<>());
  }

  static <T> DataStream<T> bids(DataStream<Event> events, MapFunction<Bid, T> fields, TypeInformation<T> type) {
    return events.filter(event -> event instanceof Bid).map(event -> fields.map((Bid) event)).returns(type);
  }

  static <T> DataStream<T> auctions(DataStream<Event> events, MapFunction<Auction, T> fields, TypeInformation<T> type) {
    return events.filter(event -> event instanceof Auction).map(event -> fields.map((Auction) event)).returns(type);
  }

  static class LocalItems
      extends KeyedCoProcessFunction<Long, Tuple4<Long, String, String, String>, Tuple2<Long, Long>,
          Tuple4<String, String, String, Long>> {
    transient ValueState<Tuple3<String, String, String>> person;
    transient ListState<Long> waiting;

    @Override
    public void open(OpenContext context) {
      person = getRuntimeContext().getState(
          new ValueStateDescriptor<>("person", Types.TUPLE(Types.STRING, Types.STRING, Types.STRING)));
      waiting = getRuntimeContext().getListState(new ListStateDescriptor<>("auctions", Types.LONG));
    }

    @Override
    public void processElement1(
        Tuple4<Long, String, String, String> value, Context context, Collector<Tuple4<String, String, String, Long>> out)
        throws Exception {
      person.update(Tuple3.of(value.f1, value.f2, value.f3));
      for (Long auction : waiting.get()) {
        out.collect(Tuple4.of(value.f1, value.f2, value.f3, auction));
      }
      waiting.clear();
    }

    @Override
    public void processElement2(
        Tuple2<Long, Long> value, Context context, Collector<Tuple4<String, String, String, Long>> out)
        throws Exception {
      Tuple3<String, String, String> known = person.value();
      if (known == null) {
        waiting.add(value.f1);
      } else {
        out.collect(Tuple4.of(known.f0, known.f1, known.f2, value.f1));
      }
    }
  }

  static class Count<T> implements AggregateFunction<T, Long, Long> {
    @Override
    public Long createAccumulator() {
      return 0L;
    }

    @Override
    public Long add(T value, Long accumulator) {
      return accumulator + 1;
    }

    @Override
    public Long getResult(Long accumulator) {
      return accumulator;
    }

    @Override
    public Long merge(Long a, Long b) {
      return a + b;
    }
  }

  /** Keeps the elements whose second field is the largest. */
  static class Largest<T extends Tuple> implements AggregateFunction<T, List<T>, List<T>> {
    @Override
    public List<T> createAccumulator() {
      return new ArrayList<>(1);
    }

    @Override
    public List<T> add(T value, List<T> kept) {
      if (!kept.isEmpty()) {
        int order = value.<Long>getField(1).compareTo(kept.get(0).<Long>getField(1));
        if (order < 0) {
          return kept;
        }
        if (order > 0) {
          kept.clear();
        }
      }
      kept.add(value);
      return kept;
    }

    @Override
    public List<T> getResult(List<T> kept) {
      return kept;
    }

    @Override
    public List<T> merge(List<T> a, List<T> b) {
      b.forEach(value -> add(value, a));
      return a;
    }
  }

  static class Each<T, K, W extends Window> implements WindowFunction<List<T>, T, K, W>, AllWindowFunction<List<T>, T, W> {
    @Override
    public void apply(K key, W window, Iterable<List<T>> kept, Collector<T> out) {
      apply(window, kept, out);
    }

    @Override
    public void apply(W window, Iterable<List<T>> kept, Collector<T> out) {
      kept.iterator().next().forEach(out::collect);
    }
  }

  static class ProcessingTimeOrEnd extends Trigger<Object, TimeWindow> {
    @Override
    public TriggerResult onElement(Object element, long timestamp, TimeWindow window, TriggerContext context) {
      context.registerProcessingTimeTimer(window.maxTimestamp());
      context.registerEventTimeTimer(Long.MAX_VALUE);
      return TriggerResult.CONTINUE;
    }

    @Override
    public TriggerResult onProcessingTime(long time, TimeWindow window, TriggerContext context) {
      return TriggerResult.FIRE;
    }

    @Override
    public TriggerResult onEventTime(long time, TimeWindow window, TriggerContext context) {
      return TriggerResult.FIRE;
    }

    @Override
    public void clear(TimeWindow window, TriggerContext context) {
      context.deleteProcessingTimeTimer(window.maxTimestamp());
      context.deleteEventTimeTimer(Long.MAX_VALUE);
    }
  }

  /** The ten highest bids of each auction with their ranks, as a changelog; of equal prices, the first. */
  static class TopTen
      extends KeyedProcessFunction<Long, Tuple7<Long, Long, Long, String, String, Long, String>, Row> {
    transient ListState<Tuple7<Long, Long, Long, String, String, Long, String>> best;

    @Override
    public void open(OpenContext context) {
      best = getRuntimeContext().getListState(new ListStateDescriptor<>("best", BID));
    }

    @Override
    public void processElement(
        Tuple7<Long, Long, Long, String, String, Long, String> bid, Context context, Collector<Row> out)
        throws Exception {
      List<Tuple7<Long, Long, Long, String, String, Long, String>> bids = new ArrayList<>(11);
      best.get().forEach(bids::add);
      int at = bids.size();
      while (at > 0 && bid.f2 > bids.get(at - 1).f2) {
        at--;
      }
      if (at == 10) {
        return;
      }
      bids.add(at, bid);
      for (int i = at; i < Math.min(bids.size(), 10); i++) {
        if (i + 1 < bids.size()) {
          out.collect(ranked(RowKind.UPDATE_BEFORE, bids.get(i + 1), i + 1));
          out.collect(ranked(RowKind.UPDATE_AFTER, bids.get(i), i + 1));
        } else {
          out.collect(ranked(RowKind.INSERT, bids.get(i), i + 1));
        }
      }
      if (bids.size() > 10) {
        bids.remove(10);
      }
      best.update(bids);
    }

    static Row ranked(RowKind kind, Tuple7<Long, Long, Long, String, String, Long, String> bid, long rank) {
      return Row.ofKind(kind, bid.f0, bid.f1, bid.f2, bid.f3, bid.f4, bid.f5, bid.f6, rank);
    }
  }

  /** Joins bids with their auctions if these are of category 10; a bid waits only while its auction has not come. */
  static class WithAuction
      extends KeyedCoProcessFunction<Long, Tuple10<Long, String, String, Long, Long, Long, Long, Long, Long, String>,
          Tuple7<Long, Long, Long, String, String, Long, String>, Row> {
    transient ValueState<Tuple10<Long, String, String, Long, Long, Long, Long, Long, Long, String>> auction;
    transient ValueState<Boolean> other;
    transient ListState<Tuple7<Long, Long, Long, String, String, Long, String>> waiting;

    @Override
    public void open(OpenContext context) {
      auction = getRuntimeContext().getState(new ValueStateDescriptor<>("auction", AUCTION));
      other = getRuntimeContext().getState(new ValueStateDescriptor<>("other", Types.BOOLEAN));
      waiting = getRuntimeContext().getListState(new ListStateDescriptor<>("bids", BID));
    }

    @Override
    public void processElement1(
        Tuple10<Long, String, String, Long, Long, Long, Long, Long, Long, String> opened, Context context,
        Collector<Row> out) throws Exception {
      if (opened.f8 == 10) {
        auction.update(opened);
        for (Tuple7<Long, Long, Long, String, String, Long, String> bid : waiting.get()) {
          out.collect(joined(bid, opened));
        }
      } else {
        other.update(true);
      }
      waiting.clear();
    }

    @Override
    public void processElement2(
        Tuple7<Long, Long, Long, String, String, Long, String> bid, Context context, Collector<Row> out)
        throws Exception {
      Tuple10<Long, String, String, Long, Long, Long, Long, Long, Long, String> known = auction.value();
      if (known != null) {
        out.collect(joined(bid, known));
      } else if (other.value() == null) {
        waiting.add(bid);
      }
    }

    static Row joined(
        Tuple7<Long, Long, Long, String, String, Long, String> b,
        Tuple10<Long, String, String, Long, Long, Long, Long, Long, Long, String> a) {
      return Row.of(b.f0, b.f1, b.f2, b.f3, b.f4, b.f5, b.f6, a.f1, a.f2, a.f3, a.f4, a.f5, a.f6, a.f7, a.f8, a.f9);
    }
  }

  static String day(long time) {
    return DAYS.computeIfAbsent(time / 86_400_000, number -> LocalDate.ofEpochDay(number).toString());
  }

  static long number(Row row, int field) {
    return (Long) row.getField(field);
  }

  static void build(DataStream<Event> events, String query) {
    switch (query) {
      case "q3" -> {
        DataStream<Tuple4<Long, String, String, String>> local = events
            .filter(event -> event instanceof Person person
                && (person.state.equals("OR") || person.state.equals("ID") || person.state.equals("CA")))
            .map(event -> (Person) event).returns(Types.GENERIC(Person.class))
            .map(person -> Tuple4.of(person.id, person.name, person.city, person.state))
            .returns(Types.TUPLE(Types.LONG, Types.STRING, Types.STRING, Types.STRING));
        DataStream<Tuple2<Long, Long>> items = events
            .filter(event -> event instanceof Auction auction && auction.category == 10)
            .map(event -> Tuple2.of(((Auction) event).seller, ((Auction) event).id))
            .returns(Types.TUPLE(Types.LONG, Types.LONG));
        var type = Types.<Tuple4<String, String, String, Long>>TUPLE(
            Types.STRING, Types.STRING, Types.STRING, Types.LONG);
        tally(local.keyBy(person -> person.f0, Types.LONG).connect(items.keyBy(item -> item.f0, Types.LONG))
            .process(new LocalItems(), type), type, row -> row.f3 * (row.f0.length() + row.f1.length()));
      }
      case "q5" -> {
        var type = Types.<Tuple3<Long, Long, Long>>TUPLE(Types.LONG, Types.LONG, Types.LONG);
        WindowFunction<Long, Tuple3<Long, Long, Long>, Long, TimeWindow> until =
            (auction, window, counts, out) -> out.collect(
                Tuple3.of(auction, counts.iterator().next(), window.getEnd()));
        tally(bids(events, bid -> bid.auction, Types.LONG).keyBy(auction -> auction, Types.LONG)
            .window(SlidingEventTimeWindows.of(TEN_SECONDS, Duration.ofSeconds(2)))
            .aggregate(new Count<Long>(), until, Types.LONG, type)
            .keyBy(count -> count.f2, Types.LONG).window(TumblingEventTimeWindows.of(Duration.ofSeconds(2)))
            .aggregate(new Largest<>(), new Each<>(), Types.LIST(type), type),
            type, row -> row.f0 * row.f1 + row.f2);
      }
      case "q7" -> {
        var type = Types.<Tuple5<Long, Long, Long, Long, String>>TUPLE(
            Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.STRING);
        tally(bids(events, bid -> Tuple5.of(bid.auction, bid.price, bid.bidder, bid.dateTime, bid.extra), type)
            .keyBy(bid -> bid.f0, Types.LONG).window(TumblingEventTimeWindows.of(TEN_SECONDS))
            .aggregate(new Largest<>(), new Each<>(), Types.LIST(type), type)
            .windowAll(TumblingEventTimeWindows.of(TEN_SECONDS))
            .aggregate(new Largest<>(), new Each<Tuple5<Long, Long, Long, Long, String>, Byte, TimeWindow>(),
                Types.LIST(type), type),
            type, row -> row.f0 * row.f1 + row.f2 + row.f3);
      }
      case "q8" -> {
        var type = Types.<Tuple3<Long, String, Long>>TUPLE(Types.LONG, Types.STRING, Types.LONG);
        DataStream<Tuple3<Long, String, Long>> registered = events.filter(event -> event instanceof Person)
            .map(event -> Tuple3.of(((Person) event).id, ((Person) event).name, event.dateTime)).returns(type);
        DataStream<Long> sellers = auctions(events, auction -> auction.seller, Types.LONG);
        CoGroupFunction<Tuple3<Long, String, Long>, Long, Tuple3<Long, String, Long>> sells =
            (people, auctions, out) -> {
              if (auctions.iterator().hasNext()) {
                people.forEach(person -> out.collect(Tuple3.of(person.f0, person.f1, person.f2 - person.f2 % 10_000)));
              }
            };
        tally(registered.coGroup(sellers).where(person -> person.f0, Types.LONG)
            .equalTo(seller -> seller, Types.LONG).window(TumblingEventTimeWindows.of(TEN_SECONDS)).apply(sells, type),
            type, row -> row.f0 * row.f1.length() + row.f2);
      }
      case "q11", "q12" -> {
        var type = Types.<Tuple4<Long, Long, Long, Long>>TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG);
        WindowFunction<Long, Tuple4<Long, Long, Long, Long>, Long, TimeWindow> within =
            (bidder, window, counts, out) -> out.collect(
                Tuple4.of(bidder, counts.iterator().next(), window.getStart(), window.getEnd()));
        var byBidder = bids(events, bid -> bid.bidder, Types.LONG).keyBy(bidder -> bidder, Types.LONG);
        if (query.equals("q11")) {
          tally(byBidder.window(EventTimeSessionWindows.withGap(TEN_SECONDS))
              .aggregate(new Count<Long>(), within, Types.LONG, type),
              type, row -> row.f0 * row.f1 + row.f2 + row.f3);
        } else {
          tally(byBidder.window(TumblingProcessingTimeWindows.of(TEN_SECONDS)).trigger(new ProcessingTimeOrEnd())
              .aggregate(new Count<Long>(), within, Types.LONG, type),
              type, row -> row.f1, row -> row.f0 * row.f1);
        }
      }
      case "q17" -> {
        var type = Types.<Tuple9<Long, String, Long, Long, Long, Long, Long, Long, Long>>TUPLE(
            Types.LONG, Types.STRING, Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.LONG,
            Types.LONG);
        var result = Types.<Tuple10<Long, String, Long, Long, Long, Long, Long, Long, Long, Long>>TUPLE(
            Types.LONG, Types.STRING, Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.LONG,
            Types.LONG, Types.LONG);
        TypeInformation<Tuple2<Long, String>> key = Types.TUPLE(Types.LONG, Types.STRING);
        tally(bids(events, bid -> {
              boolean low = bid.price < 10_000;
              boolean high = bid.price >= 1_000_000;
              return Tuple9.of(bid.auction, day(bid.dateTime), 1L,
                  low ? 1L : 0L, !low && !high ? 1L : 0L, high ? 1L : 0L, bid.price, bid.price, bid.price);
            }, type)
            .keyBy(total -> Tuple2.of(total.f0, total.f1), key)
            .reduce((a, b) -> Tuple9.of(a.f0, a.f1, a.f2 + b.f2, a.f3 + b.f3, a.f4 + b.f4, a.f5 + b.f5,
                Math.min(a.f6, b.f6), Math.max(a.f7, b.f7), a.f8 + b.f8))
            .map(t -> Tuple10.of(t.f0, t.f1, t.f2, t.f3, t.f4, t.f5, t.f6, t.f7, t.f8 / t.f2, t.f8)).returns(result),
            result, row -> row.f0 * row.f2 + row.f3 + row.f6 + row.f7 + row.f8 + row.f9);
      }
      case "q18" -> tally(bids(events, Bid::whole, BID)
          .keyBy(bid -> Tuple2.of(bid.f1, bid.f0), Types.TUPLE(Types.LONG, Types.LONG)).maxBy(5),
          BID, row -> row.f0 * row.f2 + row.f1 * row.f5);
      case "q19" -> tally(bids(events, Bid::whole, BID).keyBy(bid -> bid.f0, Types.LONG).process(new TopTen()),
          Types.GENERIC(Row.class), row -> number(row, 0) * number(row, 2) + number(row, 1) * number(row, 7));
      case "q20" -> tally(
          auctions(events, Auction::whole, AUCTION).keyBy(auction -> auction.f0, Types.LONG)
              .connect(bids(events, Bid::whole, BID).keyBy(bid -> bid.f0, Types.LONG)).process(new WithAuction()),
          Types.GENERIC(Row.class), row -> number(row, 1) * number(row, 2) + number(row, 9) * number(row, 13));
      default -> throw new IllegalArgumentException(query);
    }
  }

  public static void main(String[] arguments) throws Exception {
    String data = arguments[2];
    StreamExecutionEnvironment env = FlinkLocal.environment(arguments[1], arguments[4]);
    DataStream<Event> events = FlinkLocal.lines(env, "json", data + "/events-0.json", data + "/events-1.json")
        .map(new Decode(Long.parseLong(arguments[3])))
        .returns(Types.GENERIC(Event.class))
        .assignTimestampsAndWatermarks(
            WatermarkStrategy.<Event>forBoundedOutOfOrderness(Duration.ofSeconds(4))
                .withTimestampAssigner((event, recorded) -> event.dateTime));
    build(events, arguments[0]);
    env.execute(arguments[0]);
    FlinkLocal.print(String.format(Locale.ROOT, "\"rows\": %d, \"checksum\": %d", ROWS.get(), CHECKSUM.get()));
    System.exit(0);
  }
}
