import java.time.Duration;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** The smallest stateful job on Flink's Java API, in a local cluster of one JVM; prints running totals. */
public class FlinkStart {
  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    settings.setString("execution.checkpointing.interval", "10s");
    settings.setString("restart-strategy.type", "none");
    StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
    env.fromData(1L, 2L, 3L, 4L).keyBy(n -> n % 2, Types.LONG).reduce(Long::sum).print();
    env.execute("start");
  }
}
