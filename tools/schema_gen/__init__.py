"""Writes `tidemill.wire.generated` from Kafka's message schemas.

    python -m tools.schema_gen --jars kafka-clients-4.3.1.jar kafka-group-coordinator-4.3.1.jar \
        kafka-transaction-coordinator-4.3.1.jar
                                          adopt new schemas, then write the code
    python -m tools.schema_gen            write the code from the stored schemas
    python -m tools.schema_gen --check    fail if the checked-in code differs

How the package works: `jar` reads Kafka's JSON files and stores everything but prose in
`schemas.json`; `model` turns that into messages, structs and fields, and adds `extensions`;
`layout` knows sizes and types; `statements` generates code for one version at a time, which
`branches` groups into `if version >= n` ladders; `modules` assembles whole files.
"""
