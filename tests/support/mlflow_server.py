"""A stub of MLflow's tracking server: its REST API for runs and its proxy for artifacts, which keep what they receive."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.http_server import HttpReply, HttpRequest, HttpServer

_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"


class LoggedRun:
    def __init__(self, number: int, fields: dict[str, Any]) -> None:
        self.id = f"run{number}"
        self.name = fields["run_name"]
        self.tags = {tag["key"]: tag["value"] for tag in fields["tags"]}
        self.status = "RUNNING"
        self.params: dict[str, str] = {}
        self.metrics: dict[str, float] = {}
        self.files: dict[str, bytes] = {}

    @property
    def reply(self) -> dict[str, Any]:
        info = {"run_id": self.id, "experiment_id": "7", "status": self.status, "lifecycle_stage": "active"}
        return {"run": {"info": info | {"artifact_uri": f"mlflow-artifacts:/{self.id}"}, "data": {}}}


class MlflowServer(HttpServer):
    def __init__(self) -> None:
        self.experiments: list[str] = []
        self.runs: list[LoggedRun] = []
        super().__init__(self._answer)

    def run(self, id_: str) -> LoggedRun:
        return next(run for run in self.runs if run.id == id_)

    def _answer(self, request: HttpRequest, number: int) -> HttpReply:
        parts = urlsplit(request.path)
        if request.method == "PUT":
            run, _, name = parts.path.removeprefix(_ARTIFACTS).partition("/")
            self.run(run).files[name] = request.body
            return HttpReply(b"{}")
        fields = json.loads(request.body) if request.body else {}
        call = parts.path.removeprefix("/api/2.0/mlflow/").replace("/", "_").replace("-", "_")
        value: dict[str, Any] = {}
        match call:
            case "experiments_get_by_name":
                return HttpReply(b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}', 404)
            case "experiments_create":
                self.experiments.append(fields["name"])
                value = {"experiment_id": "7"}
            case "runs_create":
                self.runs.append(LoggedRun(number, fields))
                value = self.runs[-1].reply
            case "runs_get":
                value = self.run(parse_qs(parts.query)["run_id"][0]).reply
            case "runs_log_batch":
                run = self.run(fields["run_id"])
                run.params |= {each["key"]: each["value"] for each in fields.get("params", [])}
                run.metrics |= {each["key"]: each["value"] for each in fields.get("metrics", [])}
            case "runs_update":
                self.run(fields["run_id"]).status = fields["status"]
        return HttpReply(json.dumps(value).encode())
