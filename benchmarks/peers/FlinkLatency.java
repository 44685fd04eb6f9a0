import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.core.plugin.PluginUtils;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** The job of benchmarks.latency in Flink, exactly once: SERVERS PARALLELISM EMIT_EVERY, then settings as KEY=VALUE. */
public class FlinkLatency {
  private static final long MINUTE_MS = 60_000;

  static class Sample extends KeyedProcessFunction<String, LatencyRecord, String> {
    private final int emitEvery;
    private transient ValueState<Long> count;

    Sample(int emitEvery) {
      this.emitEvery = emitEvery;
    }

    @Override
    public void open(OpenContext context) {
      count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
    }

    @Override
    public void processElement(LatencyRecord read, Context context, Collector<String> out) throws Exception {
      Long before = count.value();
      if (before == null) {
        context.timerService().registerEventTimeTimer(context.timestamp() + MINUTE_MS);
      }
      count.update(before == null ? 1 : before + 1);
      if (read.number % emitEvery == 0) {
        out.collect(Long.toString(read.sent));
      }
    }

    @Override
    public void onTimer(long timestamp, OnTimerContext context, Collector<String> out) {
      count.clear();
    }
  }

  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    for (int n = 3; n < arguments.length; n++) {
      int middle = arguments[n].indexOf('=');
      settings.setString(arguments[n].substring(0, middle), arguments[n].substring(middle + 1));
    }
    FileSystem.initialize(settings, PluginUtils.createPluginManagerFromRootFolder(settings));
    StreamExecutionEnvironment env =
        StreamExecutionEnvironment.createLocalEnvironment(Integer.parseInt(arguments[1]), settings);
    env.getConfig().enableObjectReuse();
    KafkaSource<String> source =
        KafkaSource.<String>builder()
            .setBootstrapServers(arguments[0])
            .setTopics("input")
            .setGroupId("latency")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
    KafkaSink<String> sink =
        KafkaSink.<String>builder()
            .setBootstrapServers(arguments[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("latency")
            .setProperty("transaction.timeout.ms", "600000")
            .setRecordSerializer(
                KafkaRecordSerializationSchema.<String>builder()
                    .setTopic("output")
                    .setValueSerializationSchema(new SimpleStringSchema())
                    .build())
            .build();
    env.fromSource(source, WatermarkStrategy.noWatermarks(), "input")
        .map(LatencyRecord::of)
        .assignTimestampsAndWatermarks(
            WatermarkStrategy.<LatencyRecord>forBoundedOutOfOrderness(Duration.ofSeconds(5))
                .withTimestampAssigner((read, before) -> read.eventTime))
        .keyBy(read -> read.user)
        .process(new Sample(Integer.parseInt(arguments[2])))
        .sinkTo(sink);
    env.execute("latency");
  }
}
