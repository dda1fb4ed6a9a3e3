"""Learning rules: how an agent's function changes when samples arrive."""

from kernelmesh.rules.averaged import Averaged
from kernelmesh.rules.base import Rule, check_rule
from kernelmesh.rules.gradient import Gradient
from kernelmesh.rules.landmarks import Landmarks
from kernelmesh.rules.second_order import SecondOrder

__all__ = ["Averaged", "Gradient", "Landmarks", "Rule", "SecondOrder", "check_rule"]
