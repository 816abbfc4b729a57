"""A query in a process of its own, for tests that kill it: DRIVER BOOTSTRAP TOPIC FOLDER HANG_AT.

Appends the numbers of each batch to FOLDER/got and says `batch N`. In batch HANG_AT it says so
after half of its rows and waits to be killed; -1 means: read what exists, then end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.spark.queries import load_stream, numbers_of
from tidemill.spark import session

HANG_S = 600.0


def main(bootstrap: str, topic: str, folder: Path, hang_at: int) -> None:
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
    settings |= {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    spark = session("driver", master="local[2]", settings=settings, quiet=True, brief=True)
    stream = load_stream(
        spark, bootstrap, topic, startingOffsets="earliest", maxOffsetsPerTrigger="40"
    )

    def take(rows, batch_id: int) -> None:
        numbers = numbers_of(rows.select("value").collect())
        hangs = batch_id == hang_at
        with (folder / "got").open("a") as out:
            out.writelines(f"{number}\n" for number in numbers[: 20 if hangs else None])
        sys.stdout.write(f"batch {batch_id}\n")
        sys.stdout.flush()
        if hangs:
            time.sleep(HANG_S)

    writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
