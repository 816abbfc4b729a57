"""`python -m bench`: what Tidemill does on this machine, side by side with Apache Kafka."""
