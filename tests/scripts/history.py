"""Write a small bilingual history through the real SessionDB; run inside a Hermes."""

import os
import sys
from pathlib import Path

from hermes_state import SessionDB

SESSIONS = {
    "disk": ["C盘满了，做一次磁盘清理，把临时文件删掉", "已清理旧日志和缓存，释放了 12GB"],
    "bulbs": [
        "Pair the new Tuya bulbs in the living room with the hub",
        "Done: three Tuya bulbs are paired, named and grouped.",
    ],
    "bread": ["The sourdough starter looks flat", "Feed it twice a day and keep it warm."],
    "ftp": ["用 FTP 上传网站的图片", "已经通过 FTP 上传到 /var/www/images，一共 240 个"],
    "docker": [
        "docker compose fails with a port conflict on 8080",
        "Another container used port 8080; the docker service now listens on 8081.",
    ],
}

db = SessionDB(Path(os.environ["HERMES_HOME"]) / "state.db")
for name in sys.argv[1:] or SESSIONS:
    db.create_session(name, source="cli")
    db.append_message(name, "user", SESSIONS[name][0])
    db.append_message(name, "assistant", SESSIONS[name][1])
db.close()
