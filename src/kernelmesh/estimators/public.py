"""The estimators: a single learner or a network, for classes or values."""

from kernelmesh.estimators.network import Network
from kernelmesh.estimators.single import Single
from kernelmesh.estimators.targets import Classification, Regression

__all__ = ["KernelMeshClassifier", "KernelMeshRegressor", "OnlineKernelClassifier", "OnlineKernelRegressor"]


class OnlineKernelClassifier(Classification, Single):
    """An online kernel classifier with bounded memory. One pass over the data comes close to a batch SVM.

    The default learner is `SecondOrder`. `regularization`, `budget`, `max_order` and `half_life` are its settings; `learner`
    replaces it by another one with settings of its own. Bandwidth and λ are chosen on the first rows unless they are given:
    in `fit` on at most 1024 rows, in `partial_fit` after the first 128, 256, 512 and 1024.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default a Gaussian, starting from the bandwidth 0.7 √(v / 2) (without `SecondOrder` √(v / 2), which
        stays), where v is the sum of the features' variances. `partial_fit` assumes standardized features.
    loss : Loss, optional
        The loss ℓ, with class targets; by default Logistic().
    learner : Learner, optional
        How samples change the model, for example `Averaged(step_size=100.0)` or `SecondOrder(novelty=0.05)`.
    regularization : float, optional
        The regularization λ, which corresponds to 1/C of an SVM; by default chosen, starting from 0.05 times the mean of
        κ(x, x) over the first rows.
    budget : float, optional
        The increase in loss per sample that removing points may cause, by default 0.0075: larger means fewer points.
    max_order : int, optional
        The maximum number of points, by default 2000, for which two matrices take 64 MB; math.inf means no limit.
    half_life : float, optional
        The number of samples after which the influence of old data has halved; math.inf means that nothing is forgotten. By
        default, `partial_fit` uses 10,000, and `fit`, which shuffles the rows, forgets nothing.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        The maximum number of passes of `fit`; by default 2 (4 for fewer than 2000 rows), with `Averaged` 5 and with
        `Gradient` 20.
    tol : float or None
        `fit` stops when a pass does not lower the mean loss of the predictions, on up to 1000 of the rows, by more than this
        fraction of the lowest so far; None makes all passes.
    verbose : bool or int
        Whether `fit` prints a line for each pass, and every few seconds during long ones.
    random_state : int, RandomState or None
        The seed for shuffling in `fit`.

    Attributes
    ----------
    kernel_, regularization_ : Kernel, float
        κ and λ, as given or as chosen.
    classes_ : ndarray of shape (classes,)
        The class labels, in order.
    dictionary_, weights_ : ndarray
        The points of the kernel expansion, one per row, and their weights, one column per output.
    model_order_ : int
        The number of points.
    n_iter_ : int
        The number of passes that `fit` has completed.
    agent_, states_ : Agent, tuple of State
        The settings with which the estimator learns, and the state in which it is.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(400, noise=0.1, random_state=0)
    >>> model = OnlineKernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95), bool(model.model_order_ < 100)
    (True, True)
    """


class OnlineKernelRegressor(Regression, Single):
    """An online kernel regressor with bounded memory, for one or several columns of values.

    It learns as `OnlineKernelClassifier` does, with the same parameters; defaults that differ are listed here. Targets are
    standardized using the first ones seen.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default a Gaussian, starting from the bandwidth √(v / 2).
    loss : Loss, optional
        The loss ℓ, with value targets; by default Squared().
    learner : Learner, optional
        In place of the default one, for example `Averaged(step_size=1.5)`; much larger steps diverge.
    regularization : float, optional
        λ; by default chosen, starting from 0.6 times the mean of κ(x, x) over the first rows.
    budget : float, optional
        By default 0.0025.
    max_order, half_life, batch_size, passes, tol, verbose, random_state : optional
        As in `OnlineKernelClassifier`.

    Attributes
    ----------
    target_offset_, target_scale_ : ndarray of shape (outputs,)
        The offset and scale used to standardize targets.
    kernel_, regularization_, dictionary_, weights_, model_order_, n_iter_, agent_, states_ : Any
        As in `OnlineKernelClassifier`.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 200)[:, None]
    >>> model = OnlineKernelRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> bool(model.score(X, np.sin(3 * X[:, 0])) > 0.9)
    True
    """


class KernelMeshClassifier(Classification, Network):
    """A network of online kernel classifiers that learn one model together.

    By default, agents add up sums over their rows (`Relay`), so that each ends with the model of all rows, also one that has
    none. The protocol decides on the default learner: `Landmarks` with `Relay`, `SecondOrder` with `Local`, `Averaged` with
    `Diffusion`, and `Gradient` with `Penalty` and `Hilbert`, which need small steps. Its settings are `regularization`,
    `max_order` and `half_life`; `learner` replaces it by another one with settings of its own.

    The estimator predicts with the average of all agents, or with one of them: `predict(X, agent=name)`.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default a Gaussian as in `OnlineKernelClassifier`. With `Relay`, agents agree on the scales of the
        features, and on 1/8 to 2 times the bandwidth.
    loss : Loss, optional
        The loss ℓ, with class targets; by default Logistic().
    graph : Graph, networkx graph or list of edges, optional
        The communication graph; by default a ring of 5 agents.
    protocol : ConsensusProtocol, optional
        What agents tell their neighbors; by default Relay(), or Diffusion() for a `learner` that hears functions.
    faults : Faults, optional
        Simulated faults: lost messages, absent agents, changing edges. Rounds are counted from 1 in every call of `fit` and
        `partial_fit`. Not stored by `save`.
    learner : Learner, optional
        How samples change a model, for example `Landmarks(keep=0)`.
    regularization : float, optional
        The regularization λ. With `Relay`, it corresponds to 1/C of an SVM with the rows of all agents, who by default agree
        on 1/64 to 4 times 0.05 times the mean of κ(x, x) over the first rows. With `Local`, it is that of each agent. With
        other protocols, it is relative to the mean loss, by default 10⁻⁶.
    max_order : int, optional
        The maximum number of points: by default 500 with `Relay`, whose agents send max_order² / 2 numbers in each wave, 2000
        with `Local`, and unlimited (math.inf) with others.
    half_life : float, optional
        The number of an agent's samples after which the influence of old data has halved, as in `OnlineKernelClassifier`; not
        with `Gradient`. With `Averaged`, nothing is forgotten by default.
    batch_size : int
        Rows per mini-batch.
    passes : int, optional
        The maximum number of passes of `fit`, in which each agent sees a part of the rows; by default 1 with `Landmarks`, 2
        with `SecondOrder`, 5 with `Averaged` and 50 with `Gradient`.
    tol, verbose, random_state : optional
        As in `OnlineKernelClassifier`.

    Attributes
    ----------
    agents_ : dict of Hashable to Function
        The function that each agent has learned, by its name in the graph.
    dictionary_, weights_ : ndarray
        The points of the average function, which are those that all agents share or the dictionaries of all agents, stacked;
        and their weights.
    model_order_ : ndarray of shape (agents,)
        The number of points in each agent's dictionary.
    floats_sent_, bytes_sent_ : ndarray of shape (agents,)
        The numbers and bytes that each agent has sent, in `fit` and all later calls of `partial_fit`.
    agent_, states_ : Agent, tuple of State
        The settings of every agent, and the state of each.
    classes_, kernel_, regularization_, n_iter_ : Any
        As in `OnlineKernelClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(400, noise=0.1, random_state=0)
    >>> mesh = KernelMeshClassifier(graph=[("a", "b"), ("b", "c")], random_state=0).fit(X, y)
    >>> sorted(mesh.agents_), bool(mesh.score(X, y) > 0.9)
    (['a', 'b', 'c'], True)
    """


class KernelMeshRegressor(Regression, Network):
    """A network of online kernel regressors that learn one model together.

    It learns as `KernelMeshClassifier` does, with the same parameters; defaults that differ are listed here. Targets, in one
    or several columns, are standardized using the first ones seen.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel κ; by default a Gaussian as in `OnlineKernelRegressor`.
    loss : Loss, optional
        The loss ℓ, with value targets; by default Squared().
    regularization : float, optional
        As in `KernelMeshClassifier`, with 0.6 in place of 0.05.
    graph, protocol, faults, learner, max_order, half_life, batch_size, passes, tol, verbose, random_state : optional
        As in `KernelMeshClassifier`.

    Attributes
    ----------
    target_offset_, target_scale_ : ndarray of shape (outputs,)
        The offset and scale used to standardize targets.
    agents_, dictionary_, weights_, model_order_, floats_sent_, bytes_sent_, agent_, states_ : Any
        As in `KernelMeshClassifier`.
    kernel_, regularization_, n_iter_ : Any
        As in `OnlineKernelClassifier`.

    Examples
    --------
    >>> X = np.linspace(-2, 2, 400)[:, None]
    >>> mesh = KernelMeshRegressor(random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> mesh.predict(X, agent=2).shape
    (400,)
    """
