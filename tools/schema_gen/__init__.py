"""Writes `tidemill.wire.generated` from Kafka's message schemas.

    python -m tools.schema_gen --jars kafka-clients-4.3.1.jar kafka-group-coordinator-4.3.1.jar
                                          take over new schemas, then write
    python -m tools.schema_gen            write again from the stored ones
    python -m tools.schema_gen --check    fail if the written code is not ours

The way through the package: `jar` reads Kafka's JSON files and keeps what is not prose in
`schemas.json`; `model` turns that into messages, structs and fields, with `extensions` added;
`layout` knows sizes and types; `reading` and `writing` make statements for one version, which
`branches` groups into `if version >= n` ladders; `modules` puts whole files together.
"""
