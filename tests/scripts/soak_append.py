"""Append messages through SessionDB at a steady rate; run inside a Hermes.

Arguments: a JSON object with ``session``, ``first`` (number of the first text), ``seed``, ``log``
(a file that gets one JSON line a call), ``most_seconds``, and either ``rate`` (calls a second,
until the file ``stop`` exists) or ``count`` (as many calls, as fast as they go).
"""

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

import model_tools  # noqa: F401  Hermes discovers its plugins while this is imported
from hermes_state import SessionDB

ENGLISH = """The docker container uses port {n} and fails after an update
Pair the smart bulbs in the living room with the hub number {n}
The nightly backup to the second disk stopped with error {n}
Please review how the scheduler retries a failed job {n} times
Sourdough bread needs flour, water, salt and {n} hours of patience
The invoice of customer {n} was sent twice because of a race
Move the photos of the summer holiday to album {n} and share them
Memory grows by {n} megabytes a day until the service is restarted""".split("\n")
CHINESE = """C盘空间只剩 {n} MB，需要做一次磁盘清理
把网站图片通过 FTP 上传到第 {n} 台服务器
定时任务第 {n} 次失败，原因是数据库被锁住
客厅的智能灯泡编号 {n} 连接不上网关
请把第 {n} 份合同翻译成英文并发给客户
服务内存持续增长，{n} 小时后必须重启
明天上午 {n} 点提醒我给供应商打电话
第 {n} 个测试用例在新版本里没有通过""".split("\n")
FORMAL = ("ok", "继续", "好的", "thanks", "", "👍")
POOL = 40
"""Texts that come again and again, in every process."""


def fresh(seed: int, n: int) -> str:
    """Return text number *n*: one sentence to several KB, Chinese, English or both."""
    source = random.Random(f"{seed}-{n}")
    low, high = source.choices([(1, 2), (4, 10), (40, 90), (150, 220)], [60, 25, 12, 3])[0]
    language = source.choice([ENGLISH, CHINESE, ENGLISH + CHINESE])
    sentences = [
        source.choice(language).format(n=source.randrange(10_000))
        for _ in range(source.randint(low, high))
    ]
    end = "。" if language is CHINESE else ".\n"
    return f"#{n} " + end.join(sentences)


def message(seed: int, n: int) -> tuple[str, str]:
    """Return role and text of message *n*; a fifth of the texts was there before."""
    source = random.Random(f"message-{seed}-{n}")
    role = source.choices(["user", "assistant", "tool"], [47, 47, 6])[0]
    kind = source.random()
    if kind < 0.05:
        return role, source.choice(FORMAL)
    if kind < 0.15:
        return role, fresh(seed, -1 - source.randrange(POOL))
    if kind < 0.25:
        return role, fresh(seed, max(n - source.randint(1, 100), n - n % 1_000_000))
    return role, fresh(seed, n)


def main() -> None:
    given = json.loads(sys.argv[1])
    log = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**entry: object) -> None:
        os.write(log, (json.dumps(entry) + "\n").encode())

    db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
    db.create_session(given["session"], source="cli")
    note(ready=True)
    started = due = time.monotonic()
    for step in range(given.get("count") or sys.maxsize):
        if given.get("rate"):
            due += 1 / given["rate"]
            time.sleep(max(0.0, due - time.monotonic()))
            if os.path.exists(given["stop"]) or time.monotonic() > started + given["most_seconds"]:
                break
        role, text = message(given["seed"], given["first"] + step)
        more = {"tool_name": "terminal"} if role == "tool" else {}
        at = time.perf_counter()
        try:
            msg_id = db.append_message(given["session"], role, text, **more)
        except Exception as error:
            note(call="append_message", error=type(error).__name__, message=str(error))
            continue
        ms = (time.perf_counter() - at) * 1000
        digest = hashlib.sha256(text.encode()).hexdigest()
        note(call="append_message", ms=round(ms, 3), id=msg_id, sha=digest, n=given["first"] + step)
    db.close()
    note(ended=True)


main()
