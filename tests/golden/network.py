"""Expected side: a network with one hidden layer, its gradient by hand, and SGD, in NumPy
float64."""

import numpy as np

BODY = ("hidden.weight", "hidden.bias")
HEAD = ("head.weight", "head.bias")
ALL = BODY + HEAD


def features(w, x):
    """z = max(0, V x + c)."""
    return np.maximum(x @ w["hidden.weight"].T + w["hidden.bias"], 0)


def logits(w, x):
    return features(w, x) @ w["head.weight"].T + w["head.bias"]


def log_softmax(scores):
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def cross_entropy(scores, y):
    return -log_softmax(scores)[np.arange(len(y)), y].mean()


def gradient(w, x, y):
    """Gradient of the mean cross-entropy in all parameters."""
    hidden = x @ w["hidden.weight"].T + w["hidden.bias"]
    z = np.maximum(hidden, 0)
    scores = z @ w["head.weight"].T + w["head.bias"]
    error = (np.exp(log_softmax(scores)) - np.eye(scores.shape[1])[y]) / len(y)
    back = (error @ w["head.weight"]) * (hidden > 0)
    return {
        "hidden.weight": back.T @ x,
        "hidden.bias": back.sum(0),
        "head.weight": error.T @ z,
        "head.bias": error.sum(0),
    }


def sgd(w, x, y, batches, training, names=ALL):
    """SGD with coupled weight decay, v <- m v + (g + a w), w <- w - lr v, from v = 0.

    Only ``names`` are updated. Returns the new parameters, and the features and labels of every
    batch as they were before its step.
    """
    w = {name: value.copy() for name, value in w.items()}
    velocity = {name: np.zeros_like(w[name]) for name in names}
    z, labels = [], []
    for batch in batches:
        z.append(features(w, x[batch]))
        labels.append(y[batch])
        slope = gradient(w, x[batch], y[batch])
        for name in names:
            decayed = slope[name] + training.weight_decay * w[name]
            velocity[name] = training.momentum * velocity[name] + decayed
            w[name] = w[name] - training.lr * velocity[name]
    return w, np.concatenate(z), np.concatenate(labels)


def average(trees, sizes):
    """sum_i n_i w_i / sum_i n_i, for every entry of the trees."""
    return {name: sum(n * w[name] for n, w in zip(sizes, trees)) / sum(sizes) for name in trees[0]}


def confusion(scores, y):
    """Right predictions by class, and the sum of the cross-entropy."""
    right = scores.argmax(1) == y
    correct = np.bincount(y[right], minlength=scores.shape[1])
    return correct, len(y) * cross_entropy(scores, y)
