"""Adapt any trained network to images without labels, batch by batch, while it predicts them.

Shapes: B images, C classes, H × W elements of an image's logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.objective import EntropyObjective
from dem_apps.test_time_methods import build_method
from dem_apps.test_time_methods.learner import Learner, OptimizerBuilder
from dem_apps.test_time_methods.network import AdaptedNetwork, find_logits
from dem_apps.test_time_methods.options import one_of

PREDICT = ("before", "after")


class TestTimeAdapter:
    """A trained network that adapts to the images it is given.

    The model is adapted in place: ``adapter.model`` is the object that was given, and its ``state_dict()`` holds the
    adapted weights under the names it always had. It runs in ``eval()`` mode (dropout is off) except that batch norm
    normalises by the batch, and what does not learn has ``requires_grad`` False; :meth:`close` puts these flags back.

    Which layers are normalisation: batch norm of every dimension, synchronised or not, instance, group, layer and RMS
    norm of PyTorch and their subclasses. Another class with scale and shift is reached by a pattern. One process.

    Args:
        model: any module with logits (B, C) or (B, C, H, W).
        method: of :data:`dem_apps.test_time_methods.METHODS`; each class tells its paper and options.
        objective: what is minimised, a name of :func:`dem_apps.build_objective` or an
            :class:`dem_apps.EntropyObjective`; ``none``, ``bn`` and ``lab`` minimise nothing.
        lr: learning rate of a named optimiser.
        optimizer: ``sgd`` (momentum 0.9), ``adam``, ``adamw``, or a function that makes one from parameters.
        reduction: ``mean`` over elements, or ``balanced``, the mean within each predicted class and then over classes.
        parameters: which learn: ``normalisation`` (scale and shift), ``all``, or a regular expression that is searched
            in their names. None is the method's own: ``all`` for ``cotta``, else ``normalisation``.
        skip: a regular expression; parameters with a match in their names do not learn.
        batch_norm: ``batch``, by the batch's statistics while the stored ones stay; ``moving``, these follow as in
            training; ``stored``, by the stored ones. None is the method's own: ``batch`` where something learns.
        predict: ``before`` returns the logits that the update was made from, as Tent does; ``after`` predicts the
            batch once more.
        episodic: every call begins with :meth:`reset`, so that each batch is adapted to for itself.
        num_classes: C, or None to take it from the first logits.
        logits_of: takes the logits out of what the model returns. None finds a tensor, ``.logits``, or one of the keys
            ``logits``, ``main`` and ``out``.
        objective_options: of the named objective, such as ``{"momentum": 0.05}``.
        seed: of everything that is drawn; the same on every device.
        options: of the method, see :func:`dem_apps.test_time_methods.method_options`.

    Raises:
        ValueError: an unknown name, option or value, and a network in which nothing would learn.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 1))
    >>> adapter = TestTimeAdapter(model, method="tent", objective="adadem", lr=1e-3, reduction="balanced")
    >>> adapter(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 5, 14, 14])
    >>> list(adapter.learning)
    ['1.weight', '1.bias']
    >>> adapter.reset()
    """

    #: The name begins with Test, and pytest shall not collect it.
    __test__ = False

    def __init__(
        self,
        model: nn.Module,
        method: str = "tent",
        objective: str | EntropyObjective = "entropy",
        lr: float = 1e-3,
        optimizer: str | OptimizerBuilder = "sgd",
        reduction: str = "mean",
        *,
        parameters: str | None = None,
        skip: str | None = None,
        batch_norm: str | None = None,
        predict: str = "before",
        episodic: bool = False,
        num_classes: int | None = None,
        logits_of: Callable[[Any], Any] | None = None,
        objective_options: dict[str, Any] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.method, self.predict, self.episodic = method, one_of("predict", predict, PREDICT), episodic
        self._method = build_method(method, **options)
        own = self._method.parameters
        with _gradients():
            network = AdaptedNetwork(
                model,
                own if own is None or parameters is None else parameters,
                skip,
                batch_norm or self._method.batch_norm,
                logits_of or find_logits,
            )
            try:
                self._learner = Learner(
                    network, objective, objective_options or {}, optimizer, lr, reduction, num_classes, seed
                )
                self._method.begin(self._learner)
            except BaseException:
                network.close()
                raise

    @property
    def model(self) -> nn.Module:
        """The network that was given."""
        return self._learner.network.model

    @property
    def predictor(self) -> nn.Module:
        """The network whose logits are returned: the teacher of ``cotta``, else :attr:`model`."""
        return self._method.predictor(self._learner)

    @property
    def batch_norm(self) -> str:
        """By which statistics batch norm normalises: ``batch``, ``moving`` or ``stored``."""
        return self._learner.network.batch_norm

    @property
    def learning(self) -> dict[str, nn.Parameter]:
        """The parameters that learn, by name."""
        return self._learner.network.learning

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimiser; None where nothing learns."""
        return self._learner.optimizer

    @property
    def objective(self) -> EntropyObjective:
        """The objective; there is none before the first batch unless ``num_classes`` was given."""
        return self._learner.objective

    def __call__(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Predict a batch, and learn from it. Works under ``torch.no_grad()`` and ``inference_mode()`` too.

        Args:
            images: (B, …), preprocessed as the model wants them, on its device; B may be 1.
            mask: boolean, False where nothing shall be learnt (padding, an ignored border): (B, H, W) of the images'
                or the logits' size, or (B,) for logits (B, C). Pixels that it leaves out still pass the network, and
                so count in a batch's statistics.

        Returns:
            logits (B, C) or (B, C, H, W) without gradient, of the network's dtype.

        Raises:
            NotFiniteError: the loss is NaN or infinite; weights and optimiser are as they were before the call.
            ValueError: an output that is no logits, a mask that does not fit.
        """
        if self.episodic:
            self.reset()
        with _gradients():
            if images.is_inference():
                images = images.clone()
            with self._learner.network.step_or_nothing():
                logits = self._method.step(self._learner, images, mask)
        if self.predict == "after" and self.optimizer is not None:
            with torch.no_grad():
                logits = self._method.predict(self._learner, images)
        return logits.detach()

    def reset(self) -> None:
        """Weights and buffers bit for bit, and optimiser, objective, draws and memory of the method, as they began."""
        self._learner.reset()
        self._method.reset(self._learner)

    def close(self) -> None:
        """Give the model back: adapted, with the modes and ``requires_grad`` flags it came with."""
        self._method.close()
        self._learner.network.close()

    def state_dict(self) -> dict[str, Any]:
        """What an exact continuation needs, as copies; ``torch.load(…, weights_only=True)`` reads it.

        Everything that learns or may move, now and as it began, the optimiser, the objective, the draws, and the
        memory of the method. The weights that never learn are the model's own and not in it.
        """
        return {
            "method": self.method,
            "learner": copy.deepcopy(self._learner.state_dict()),
            "memory": copy.deepcopy(self._method.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if there had been no interruption, in an adapter made with the same model and arguments.

        Raises:
            ValueError: a state of another method, or of a network in which something else learns.
        """
        if state.get("method") != self.method:
            raise InputError(f"state: it is of method '{state.get('method')}', and this adapter is '{self.method}'")
        with _gradients():
            self._learner.load_state_dict(copy.deepcopy(state["learner"]))
            self._method.load_state_dict(copy.deepcopy(state["memory"]))


@contextmanager
def _gradients() -> Iterator[None]:
    """Gradients are on and no tensor is an inference tensor, whatever the caller's mode."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
