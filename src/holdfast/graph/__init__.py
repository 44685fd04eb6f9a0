"""From what the user wrote to what the runtime runs: transformations, uids, chains, and the job's plan."""
