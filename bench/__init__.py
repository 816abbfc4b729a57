"""`python -m bench`: measures Tidemill on this machine, side by side with Apache Kafka."""
