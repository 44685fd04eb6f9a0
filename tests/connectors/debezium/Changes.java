import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.io.PrintStream;
import java.util.Properties;

/** Writes Debezium's events of a connector, whose properties are in a file, to another file, one a line, until it is ended. */
public class Changes {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileReader reader = new FileReader(arguments[0])) {
            properties.load(reader);
        }
        PrintStream out = new PrintStream(arguments[1], "UTF-8");
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(properties)
                .notifying((events, committer) -> {
                    for (ChangeEvent<String, String> event : events) {
                        if (event.value() != null) {
                            out.println(event.value());
                        }
                        committer.markProcessed(event);
                    }
                    out.flush();
                    committer.markBatchFinished();
                })
                .using((success, message, error) -> {
                    if (!success) {
                        System.err.println(message);
                        if (error != null) {
                            error.printStackTrace();
                        }
                        System.exit(1);
                    }
                })
                .build();
        engine.run();
    }
}
