#!/usr/bin/python3
"""The pictures of the book, docs/pictures: `make screenshots`. Needs root and Chromium.

The page of a router in the network of examples/lab-l3vpn, while packets flow, at the width of a screen and of a telephone,
light and dark; and the network itself, as `underpass lab run --draw` draws it.

    scripts/screenshots.py PROGRAM
"""
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
PORT = 9290
BROWSERS = ["chromium", "chromium-browser", "google-chrome"]
SHOTS = [(f"page-{scheme}-{width}", width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]


class Browser:
    """A page without a window, spoken to by the DevTools protocol over a pipe: descriptors 3 and 4 of the browser."""

    def __init__(self, program, directory):
        read, self.to = os.pipe()
        self.answers, write = os.pipe()
        line = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={directory}/profile", "about:blank"]
        self.child = subprocess.Popen(
            ["bash", "-c", line, str(read), str(write), program, *options],
            pass_fds=[read, write], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self.last, self.session, self.buffer = 0, None, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **parameters):
        self.last += 1
        request = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                read = os.read(self.answers, 1 << 16)
                if not read:
                    sys.exit("screenshots: the browser has ended")
                self.buffer += read
            message, self.buffer = self.buffer.split(b"\0", 1)
            message = json.loads(message)
            if message.get("id") == self.last:
                if "error" in message:
                    sys.exit(f"screenshots: {method}: {message['error']}")
                return message["result"]

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def shot(self, name, width, scheme):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=f"http://127.0.0.1:{PORT}/")
        # The bars of the last minute want a few readings.
        time.sleep(8)
        if not self.evaluate("document.body.innerText.includes('End.DT46')"):
            sys.exit("screenshots: the page shows no SID")
        data = self.call("Page.captureScreenshot", format="png")["data"]
        (PICTURES / f"{name}.png").write_bytes(base64.b64decode(data))


def wait_for(what, lab, condition):
    deadline = time.monotonic() + 60
    while not condition():
        if lab.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"screenshots: no {what}")
        time.sleep(0.1)


def main():
    program = Path(sys.argv[1]).resolve()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        sys.exit("screenshots: no Chromium (scripts/test-tools.sh installs it)")
    PICTURES.mkdir(exist_ok=True)
    line = ["lab", "run", "examples/lab-l3vpn/lab.yaml", "--keep", "--web", str(PORT), "--draw", str(PICTURES / "l3vpn.svg")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, open(f"{directory}/lab", "w+") as log:
        lab = subprocess.Popen([program, *line], cwd=ROOT, stdout=log, stderr=log)
        started = []
        try:
            # Namespaces get their names when the checks are over.
            wait_for("network", lab, lambda: Path("/run/netns/l3vpn-b1").exists() and Path("/run/netns/l3vpn-a1").exists())
            for host in ("a1", "b1"):
                ping = ["ip", "netns", "exec", f"l3vpn-{host}", "ping", "-q", "-n", "-i", "0.01", "10.2.0.2"]
                started.append(subprocess.Popen(ping, stdout=subprocess.DEVNULL))
            page = Browser(browser, directory)
            started.append(page.child)
            for shot in SHOTS:
                page.shot(*shot)
        finally:
            for child in started:
                child.terminate()
                child.wait()
            lab.send_signal(signal.SIGINT)
            lab.wait()
            log.seek(0)
            if lab.returncode:
                print(log.read(), file=sys.stderr)
    for picture in sorted(PICTURES.iterdir()):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size} bytes")


main()
