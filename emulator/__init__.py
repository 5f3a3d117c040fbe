"""AWS on one machine, for the demo and the tests: ministack, and what it lacks.

    with Emulator() as emulator:
        subprocess.run(["cdk", "deploy", ...], env=emulator.environment)
        assert not any(emulator.leftovers().values())

`docs/emulator.md` says what is emulated, how faithfully, and what is not.
"""

from emulator.running import Emulator, EmulatorError

__all__ = ["Emulator", "EmulatorError"]
