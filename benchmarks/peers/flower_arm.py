"""The arm of Flower: its simulation on Ray with one actor per CPU, FedAvg, and NumPy clients."""

from __future__ import annotations

import json
import os
from typing import Any

from flwr.client import ClientApp
from flwr.common import Context, FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.arms import torch_module
from benchmarks.peers import work
from benchmarks.peers.flower_client import client_fn


class OnRequest(FedAvg):
    """Flower's FedAvg with given cohorts; every round waits for a request."""

    def __init__(self, plan: work.Plan, requests: work.Requests, **rest: Any) -> None:
        super().__init__(fraction_evaluate=0.0, accept_failures=False, **rest)
        self.plan = plan
        self.requests = requests
        self.cohorts = work.cohorts(plan)
        self.last: Any = None

    def configure_fit(
        self, server_round: int, parameters: Any, client_manager: Any
    ) -> list[tuple[Any, FitIns]]:
        """Wait, then send the weights to the cohort."""
        client_manager.wait_for(self.plan.clients)
        nodes = list(client_manager.all().values())[: self.plan.active]
        text = json.dumps(self.plan._asdict())
        if not self.requests.wait():
            raise EOFError("no more requests")
        cohort = self.cohorts[server_round - 1]
        given = [FitIns(parameters, {"plan": text, "client": client}) for client in cohort]
        return list(zip(nodes, given, strict=True))

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Average, then answer."""
        found = super().aggregate_fit(server_round, results, failures)
        self.requests.stop()
        assert not failures, failures
        self.last = found[0]
        self.requests.answer(sum(int(result.metrics["steps"]) for _, result in results))
        if server_round == self.plan.rounds:
            self.requests.finish()
        return found


def main() -> None:
    """Serve rounds."""
    plan = work.Plan.given()
    requests = work.Requests()
    module = torch_module(plan.model, plan.classes)
    work.load_weights(plan, module)
    initial = ndarrays_to_parameters(
        [parameter.detach().numpy() for parameter in module.parameters()]
    )
    strategy = OnRequest(plan, requests, initial_parameters=initial)

    def server_fn(context: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=plan.rounds))

    loopback = {"_node_ip_address": "127.0.0.1", "_temp_dir": os.environ["PEERS_TEMPORARY"]}
    run_simulation(
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=client_fn),
        num_supernodes=plan.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": plan.workers, "include_dashboard": False, **loopback},
        },
    )
    work.save_weights(plan, parameters_to_ndarrays(strategy.last))


if __name__ == "__main__":
    main()
