import java.io.Serializable;

/** A record of benchmarks.latency, whose JSON has always the same fields in the same order. */
public class LatencyRecord implements Serializable {
  public String user;
  public long number;
  public long sent;
  public long eventTime;

  public static LatencyRecord of(String json) {
    LatencyRecord read = new LatencyRecord();
    int end = json.indexOf('"', 12);
    read.user = json.substring(12, end);
    read.number = number(json, "\"number\":", end);
    read.sent = number(json, "\"sent\":", end);
    read.eventTime = number(json, "\"event_time\":", end);
    return read;
  }

  private static long number(String json, String name, int from) {
    int begin = json.indexOf(name, from) + name.length();
    int end = begin;
    while (Character.isDigit(json.charAt(end))) {
      end++;
    }
    return Long.parseLong(json, begin, end, 10);
  }
}
