import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The job of benchmarks.latency in Kafka Streams, exactly once: SERVERS DIRECTORY THREADS EMIT_EVERY PARTITIONS COMMIT_MS.
 *
 * <p>Kafka Streams has no timers by key: the minute's end stands beside the count and is looked at with the next record.
 */
public class StreamsLatency {
  private static final long MINUTE_MS = 60_000;

  static class Sample implements Processor<String, String, String, String> {
    private final int emitEvery;
    private ProcessorContext<String, String> context;
    private KeyValueStore<String, String> counts;

    Sample(int emitEvery) {
      this.emitEvery = emitEvery;
    }

    @Override
    public void init(ProcessorContext<String, String> context) {
      this.context = context;
      counts = context.getStateStore("counts");
    }

    @Override
    public void process(Record<String, String> record) {
      LatencyRecord read = LatencyRecord.of(record.value());
      String kept = counts.get(record.key());
      long count = 0;
      long until = read.eventTime + MINUTE_MS;
      if (kept != null) {
        int middle = kept.indexOf(' ');
        if (Long.parseLong(kept.substring(middle + 1)) > context.currentStreamTimeMs()) {
          count = Long.parseLong(kept.substring(0, middle));
          until = Long.parseLong(kept.substring(middle + 1));
        }
      }
      counts.put(record.key(), (count + 1) + " " + until);
      if (read.number % emitEvery == 0) {
        context.forward(new Record<>(record.key(), Long.toString(read.sent), record.timestamp()));
      }
    }
  }

  public static void main(String[] arguments) {
    int emitEvery = Integer.parseInt(arguments[3]);
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "latency");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, arguments[2]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, arguments[5]);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    settings.put("auto.offset.reset", "earliest");
    var strings = Serdes.String();
    StreamsBuilder builder = new StreamsBuilder();
    builder.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("counts"), strings, strings));
    Repartitioned<String, String> by =
        Repartitioned.with(strings, strings).withNumberOfPartitions(Integer.parseInt(arguments[4]));
    builder
        .stream(
            "input",
            Consumed.with(Serdes.ByteArray(), strings)
                .withTimestampExtractor((record, before) -> LatencyRecord.of((String) record.value()).eventTime))
        .selectKey((key, value) -> LatencyRecord.of(value).user)
        .repartition(by)
        .process(() -> new Sample(emitEvery), "counts")
        .to("output", Produced.with(strings, strings));
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(5))));
    streams.start();
  }
}
