"""Settings that are chosen automatically: steps, their size, decay, batches and rounds.

A linear model takes steps of size 1 / L_i on all of a client's data, without momentum,
where L_i is the curvature of the client's loss. Its weight decay is k / n for n samples
behind a model. One k serves all clients and methods. To find it, every client trains
models on one half of its training data and scores them on the other half; the k with
the best mean score is taken. Models that clients share have their own k, which FedAvg
finds in the same way, and which is at most the k of the other models. Any other model
takes steps of Adam on minibatches. All methods stop at the same round, when none of
them improves.

Settings that a study names are not changed. The chosen settings are stored with the
run.
"""
