"""Learners: how an agent's function changes when samples arrive."""

from kernelmesh.learners.averaged import Averaged
from kernelmesh.learners.base import Learner, check_learner
from kernelmesh.learners.gradient import Gradient
from kernelmesh.learners.landmarks import Landmarks
from kernelmesh.learners.second_order import SecondOrder

__all__ = ["Averaged", "Gradient", "Landmarks", "Learner", "SecondOrder", "check_learner"]
