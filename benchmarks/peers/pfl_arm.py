"""The arm of pfl-research: FederatedAveraging on its simulated backend, one process per worker.

The arm uses the strongest setting of pfl-research on a CPU. Images are channels last, and the model
permutes them, as in its own benchmark. Processes with one thread each are joined by gloo, and it
divides a cohort among them by the sizes of the clients (user_id_to_weight). The processes get the
environment that torchrun would give them; the rendezvous is made here, because that of torchrun
listens on every interface. pfl evaluates each client in iteration 0, the warm-up.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.arms import DECAY, LR, MOMENTUM, torch_module
from benchmarks.peers import work


class Classifier(nn.Module):
    """The network with the methods that pfl needs: a loss, and metrics."""

    def __init__(self, plan: work.Plan) -> None:
        super().__init__()
        self.layers = torch_module(plan.model, plan.classes)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of images (b, height, width, channels)."""
        logits: torch.Tensor = self.layers(x.permute(0, 3, 1, 2))
        return logits

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a training batch."""
        self.steps += 1
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Return the metrics; pfl asks for them in the warm-up only."""
        from pfl.metrics import Weighted

        with torch.no_grad():
            return {
                "loss": Weighted(
                    nn.functional.cross_entropy(self(x), y, reduction="sum").item(), len(y)
                )
            }


def join(plan: work.Plan) -> tuple[Any, list[subprocess.Popen[bytes]]]:
    """Start the other processes as torchrun would, with a store on the loopback.

    Return what must stay alive.
    """
    if plan.workers == 1 or "RANK" in os.environ:
        return None, []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    options = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
    store = torch.distributed.TCPStore("127.0.0.1", port, **options)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "peers",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    os.environ |= {"WORLD_SIZE": str(plan.workers), "LOCAL_WORLD_SIZE": str(plan.workers)}
    command = [sys.executable, "-m", "benchmarks.peers.pfl_arm", sys.argv[1]]
    others = []
    for rank in range(1, plan.workers):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        others.append(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **ranks})
        )
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
    torch.set_num_threads(1)
    return store, others


def rounds(plan: work.Plan, module: Classifier) -> Any:
    """Return a function that trains one more round."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.data import FederatedDataset
    from pfl.data.dataset import Dataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    found = work.data(plan)
    images = found.normalized()
    held = [(images[rows], found.labels[rows]) for rows in found.rows]
    order = itertools.cycle([client for cohort in work.cohorts(plan) for client in cohort])
    sizes = {client: len(rows) for client, rows in enumerate(found.rows)}
    dataset = FederatedDataset(
        lambda client: Dataset(held[client], user_id=str(client)), lambda: next(order), sizes
    )
    local = partial(torch.optim.SGD, momentum=MOMENTUM, weight_decay=DECAY)
    model = PyTorchModel(module, local, torch.optim.SGD(module.parameters(), lr=1.0))
    backend = SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()])
    algorithm = FederatedAveraging()
    hyper = NNTrainHyperParams(
        local_learning_rate=LR, local_num_epochs=plan.epochs, local_batch_size=plan.batch
    )

    def one_round(number: int) -> None:
        module.steps = 0
        params = NNAlgorithmParams(
            central_num_iterations=number + 1,
            evaluation_frequency=plan.rounds + 1,
            train_cohort_size=plan.active,
            val_cohort_size=None,
        )
        algorithm.run(params, backend, model, hyper, send_metrics_to_platform=False)

    return one_round


def main() -> None:
    """Serve rounds; the process of rank 0 speaks for all."""
    plan = work.Plan.given()
    _store, others = join(plan)
    first = os.environ.get("RANK", "0") == "0"
    requests = work.Requests() if first else None
    module = Classifier(plan)
    work.load_weights(plan, module)
    one_round = rounds(plan, module)
    together = torch.distributed.is_initialized()
    for number in range(plan.rounds):
        if requests and not requests.wait():
            break
        if together:
            torch.distributed.barrier()
        one_round(number)
        if requests:
            requests.stop()
        steps = torch.tensor(module.steps)
        if together:
            torch.distributed.all_reduce(steps)
        if requests:
            requests.answer(int(steps))
    if requests:
        requests.finish()
    if together:
        torch.distributed.barrier()
    if first:
        work.save_weights(plan, [parameter.detach() for parameter in module.parameters()])
    for other in others:
        other.wait()


if __name__ == "__main__":
    main()
