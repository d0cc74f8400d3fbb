# S3 as the package moto implements it, with faults that are switched on and off.
# It prints a line of JSON once it is ready: {"endpoint", "key", "secret"}.
import collections, json, pathlib, socket, threading, time

import boto3
import moto.settings
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

lock = threading.Lock()
state = {"fault": "none", "until": 0.0}
counts = collections.Counter()
# Successful puts of each key: nothing may be written twice.
puts = collections.Counter()
inner = DomainDispatcherApplication(create_backend_app)


def bucket():
    backends = [backend for account in s3_backends.values() for backend in account.values()]
    return next(backend.buckets["recordings"] for backend in backends if "recordings" in backend.buckets)


def answer(start, status, body, kind="application/xml"):
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def error(start, status, code):
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>for a test</Message></Error>"
    return answer(start, status, body.encode())


def control(environ, start):
    command = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
    if "fault" in command:
        state.update(fault=command["fault"], until=time.monotonic() + command["seconds"])
    if command.get("clear"):
        counts.clear(), puts.clear()
    if "copy" in command:
        for name, key in bucket().keys.items():
            if name.startswith(command["copy"] + "/"):
                path = pathlib.Path(command["to"], name[len(command["copy"]) + 1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(key.value)
    twice = sorted(key for key, count in puts.items() if count > 1)
    body = json.dumps({"counts": counts, "twice": twice, "puts": len(puts)}).encode()
    return answer(start, "200 OK", body, "application/json")


def lost(environ):
    """Closes the connection without an answer."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def application(environ, start):
    if environ["PATH_INFO"] == "/control":
        return control(environ, start)
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    fault = state["fault"] if time.monotonic() < state["until"] else "none"
    counts[method] += 1
    if method == "PUT" and path.count("/") > 1 and environ.get("HTTP_IF_NONE_MATCH") != "*":
        counts["unconditional"] += 1
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if fault != "none":
        counts[fault] += 1
    if fault in ("500", "503", "silence", "closed"):
        environ["wsgi.input"].read(length)
    if fault == "500":
        return error(start, "500 Internal Server Error", "InternalError")
    if fault == "503":
        return error(start, "503 Slow Down", "SlowDown")
    if fault == "silence":
        time.sleep(max(0, state["until"] - time.monotonic()))
        return error(start, "500 Internal Server Error", "InternalError")
    if fault == "closed":
        lost(environ)
        return []
    if fault == "replaces" and method == "PUT" and path.removeprefix("/recordings/") in bucket().keys:
        bucket().keys.pop(path.removeprefix("/recordings/"))
    seen = {}

    def begin(status, headers, info=None):
        seen["status"] = status
        return start(status, headers, info)

    # The check and the write of a conditional put are one step, as S3 has it.
    with lock:
        body = b"".join(inner(environ, begin))
    if method == "PUT" and seen["status"].startswith("200"):
        puts[path] += 1
    if fault == "unanswered":
        lost(environ)
    return [body]


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *arguments):
        pass

    def log(self, *arguments):
        pass


server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
endpoint = f"http://127.0.0.1:{server.server_port}"
own = dict(endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="own", aws_secret_access_key="own")
iam = boto3.client("iam", **own)
iam.create_user(UserName="writer")
allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="writer", PolicyName="all", PolicyDocument=json.dumps(allowed))
key = iam.create_access_key(UserName="writer")["AccessKey"]
boto3.client("s3", **own).create_bucket(Bucket="recordings")
# From here on, keys and signatures are checked.
moto.settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
counts.clear(), puts.clear()
print(json.dumps({"endpoint": endpoint, "key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
threading.Event().wait()
