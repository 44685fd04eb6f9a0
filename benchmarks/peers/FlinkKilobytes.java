import java.util.Arrays;
import java.util.SplittableRandom;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;

/** A function that keeps a count and an incompressible kilobyte for each key. */
abstract class FlinkKilobytes extends KeyedProcessFunction<Long, Long, Long> {
  static final int VALUE_BYTES = 1024;
  /** Kilobytes are excerpts of 16 MB of random bytes, so that making one costs next to nothing. */
  static final int POOL_BITS = 24;
  static final byte[] POOL = new byte[(1 << POOL_BITS) + VALUE_BYTES];

  static {
    new SplittableRandom(1).nextBytes(POOL);
  }

  transient ValueState<Long> count;
  transient ValueState<byte[]> value;

  @Override
  public void open(OpenContext context) {
    count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
    value = getRuntimeContext().getState(
        new ValueStateDescriptor<>("value", PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO));
  }

  /** The count of the current key. */
  long counted() throws Exception {
    Long known = count.value();
    return known == null ? 0 : known;
  }

  /** The kilobyte of a number. */
  static byte[] kilobyte(long number) {
    int at = (int) (number * 0x9E3779B97F4A7C15L >>> 64 - POOL_BITS);
    return Arrays.copyOfRange(POOL, at, at + VALUE_BYTES);
  }
}
