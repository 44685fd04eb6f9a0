"""Object stores: plain I/O on a directory, S3, Google Cloud Storage, Azure or HDFS, and what they share."""
