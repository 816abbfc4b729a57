module tidemill/interop/sarama

go 1.26.0
