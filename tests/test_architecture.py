"""How the package is built: what may stand where, read from the syntax tree."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_parseval as kp

pytestmark = pytest.mark.once
PACKAGE = Path(kp.__file__).parent
ROOT = PACKAGE.parent
FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
ROOMS = (
    *("analysis", "attacks", "callbacks", "constraints", "initializers", "layers", "losses"),
    *("models", "plots", "regularizers", "reports"),
)
# A room of the later kind uses those before it, never the reverse.
STOREYS = ("_classifier", "attacks", "analysis", "callbacks", "reports")


def tree_of(source):
    return ast.parse(source.read_text() if isinstance(source, Path) else source)


def imported_modules(source):
    """The modules that a file imports, and those that it imports names from."""
    names = set()
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_own(node):
    """Whether an expression is the object, or the class, that a method belongs to."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_attributes(source):
    """Attributes that begin with an underscore, of objects that are not the method's own."""
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Attribute) and not is_own(node.value):
            special = node.attr.startswith("__") and node.attr.endswith("__")
            # A named tuple's own method begins with one, so that no field can hide it.
            if node.attr.startswith("_") and not special and node.attr != "_replace":
                yield node.attr
        # Which of an optimizer's variables is which, Keras does not promise either.
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            if node.value.attr == "variables" and isinstance(node.slice, ast.Constant):
                yield "variables[...]"


def patches(source):
    """Where an object that is not the method's own is given other attributes."""
    for node in ast.walk(tree_of(source)):
        targets = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Attribute) and not is_own(each.value):
                    if isinstance(each.ctx, (ast.Store, ast.Del)):
                        yield each.attr
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", None))
            writes = name in ("setattr", "delattr", "vars", "__setattr__", "__delattr__")
            if writes and not (node.args and is_own(node.args[0])):
                yield name


def test_one_file_alone_names_a_backend():
    for name, path in FILES.items():
        allowed = {"keras", "numpy", "rich", "keras_parseval"}
        if name == "_backend.py":
            allowed |= {"tensorflow", "jax", "torch"}
        # Imported by that file, on their backend alone.
        if name in ("_backend_jax.py", "_backend_torch.py"):
            allowed |= {name[len("_backend_") : -len(".py")]}
        if name.startswith("plots"):
            allowed |= {"matplotlib"}
        if name == "reports/_page.py":
            allowed |= {"jinja2"}
        packages = {module.split(".")[0] for module in imported_modules(path)}
        assert packages - set(sys.stdlib_module_names) <= allowed, name


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_backend_is_not_asked_for_by_name_elsewhere(backend):
    for name, path in FILES.items():
        named = [
            node.value
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Constant) and node.value == backend
        ]
        assert not named or name == "_backend.py", name


def test_one_file_alone_touches_what_keras_keeps_private():
    found = {name: set(private_attributes(path)) for name, path in FILES.items()}
    assert found.pop("_keras_internals.py") == {
        *("_keras_history", "_inbound_nodes", "_flatten_layers", "variables[...]")
    }
    assert {name: attributes for name, attributes in found.items() if attributes} == {}


def test_one_helper_alone_lends_attributes():
    found = {name: set(patches(path)) for name, path in FILES.items()}
    assert found.pop("_lending.py") == {"setattr", "delattr", "vars"}
    assert found.pop("callbacks/_train_function.py") == {
        *("train_function", "make_train_function", "vars")
    }
    assert {name: attributes for name, attributes in found.items() if attributes} == {}


@pytest.mark.parametrize(
    "check, source",
    [
        (private_attributes, "def f(tensor):\n    return tensor._keras_history"),
        (private_attributes, "def f(model):\n    return model.optimizer.variables[0]"),
        (
            private_attributes,
            "class A:\n    def f(self):\n        return self.layer._inbound_nodes",
        ),
        (patches, "def f(layer):\n    layer.activation = None"),
        (patches, "def f(layer):\n    a, layer.activation = 1, 2"),
        (patches, "def f(model):\n    model.count += 1"),
        (patches, "def f(model):\n    del model.call"),
        (patches, "class A:\n    def f(self):\n        self.model.call = 1"),
        (patches, "def f(model):\n    setattr(model, 'call', 1)"),
        (patches, "def f(model):\n    object.__setattr__(model, 'call', 1)"),
        (patches, "def f(model):\n    vars(model)['call'] = 1"),
    ],
)
def test_the_checks_see_what_they_look_for(check, source):
    assert list(check(source))


def test_imports_point_one_way():
    for name, path in FILES.items():
        parts = Path(name).with_suffix("").parts
        storey = next((each for each in STOREYS if each in parts), None)
        if storey is None:
            continue
        above = STOREYS[STOREYS.index(storey) + 1 :]
        for module in imported_modules(path):
            assert not set(module.split(".")[1:2]) & set(above), f"{name} imports {module}"


def test_nothing_uses_reports_but_the_doors():
    for name, path in FILES.items():
        if name not in _DOORS and not name.startswith("reports"):
            assert not any(".reports" in module for module in imported_modules(path)), name


# Where users come in: `import keras_parseval`, and `python -m keras_parseval`.
_DOORS = ("__init__.py", "__main__.py")


def test_private_modules_use_no_room_that_uses_them():
    """What all rooms share knows of none of them, but for the kernels, which are constrained."""
    for name, path in FILES.items():
        if "/" in name or not name.startswith("_") or name in _DOORS:
            continue
        rooms = {module.split(".")[1] for module in imported_modules(path) if module.count(".") > 1}
        allowed = {"constraints"} if name in ("_layer_kernels.py", "_sets.py") else set()
        assert rooms & set(ROOMS) <= allowed, name


@pytest.mark.parametrize("folder", ["keras_parseval", "examples", "benchmarks"])
def test_nothing_private_of_keras_is_imported(folder):
    paths = list((ROOT / folder).rglob("*.py"))
    assert paths
    for path in paths:
        assert "keras.src" not in path.read_text(), path
        assert "tensorflow.python" not in path.read_text(), path


@pytest.mark.parametrize("folder", ["examples", "benchmarks"])
def test_others_use_public_names_alone(folder):
    for path in (ROOT / folder).rglob("*.py"):
        private = [
            module
            for module in imported_modules(path)
            if module.startswith("keras_parseval") and "._" in module
        ]
        assert private == [], path
        ours = set(private_attributes(path)) - {"_fields", "_replace", "_asdict"}
        assert ours == set(), path


# Functions that constraints share with others live beside the rooms.
SHARED = [
    f"keras_parseval.{name}"
    for name in ("_convolution_frames", "_simplex", "_subspace_steps", "_tight_frames")
]


def test_every_public_object_has_a_room_and_one_name():
    rooms = {name: getattr(kp, name) for name in ROOMS}
    public = {}
    for room, module in rooms.items():
        for name in module.__all__:
            value = getattr(module, name)
            assert name not in public, f"kp.{room}.{name} and kp.{public[name][0]}.{name}"
            public[name] = room, value
            if hasattr(value, "__module__"):
                assert value.__module__.startswith(f"keras_parseval.{room}") or (
                    value.__module__ in SHARED
                )
    for name in kp.__all__:
        assert public[name][1] is getattr(kp, name)
    others = {
        name
        for name, value in vars(kp).items()
        if not name.startswith("_") and name not in kp.__all__ and name not in ROOMS
    }
    assert others == set()


def test_what_users_do_not_import_begins_with_an_underscore():
    for name in FILES:
        parts = Path(name).with_suffix("").parts
        assert parts[-1].startswith("_") or (len(parts) == 1 and parts[0] in ROOMS), name
        assert len(parts) == 1 or parts[0] in ROOMS


def public_callables():
    for room in ROOMS:
        module = getattr(kp, room)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield pytest.param(value, id=f"{room}.{name}")
            elif inspect.isclass(value):
                for key, member in vars(value).items():
                    if inspect.isfunction(member) and (key == "__init__" or key[0] != "_"):
                        yield pytest.param(member, id=f"{room}.{name}.{key}")


@pytest.mark.parametrize("function", list(public_callables()))
def test_everything_public_has_types(function):
    signature = inspect.signature(function)
    parameters = [each for name, each in signature.parameters.items() if name != "self"]
    assert all(each.annotation is not inspect.Parameter.empty for each in parameters)
    if function.__name__ != "__init__":
        assert signature.return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("function", list(public_callables()))
def test_arguments_are_documented_with_their_defaults(function):
    if "." in function.__qualname__ and function.__name__ != "__init__":
        return  # a method, whose class has the documentation
    owner = function
    if function.__name__ == "__init__":
        owner = getattr(sys.modules[function.__module__], function.__qualname__.split(".")[0])
    text = inspect.getdoc(owner)
    entries = text[text.index("Args:") :].split("\n    ") if "Args:" in text else []
    documented = {entry.split(":")[0].lstrip("*"): entry for entry in joined(entries)}
    elsewhere = re.search(r"(All|The other) arguments are those of `kp\.\w+`", text)
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self" or (elsewhere and name not in documented):
            continue
        assert name in documented, name
        keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        default = parameter.default
        if keyword and default is not inspect.Parameter.empty and name not in ("epsilon", "snr"):
            assert "Defaults to" in documented[name] or "By default" in documented[name], name


def joined(lines):
    """Entries of a docstring, each with the lines that are indented below it."""
    entries = []
    for line in lines[1:]:
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line)
    return entries


def test_files_are_short():
    long = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    assert {name: lines for name, lines in long.items() if lines > 280} == {}


def test_importing_the_package_loads_no_other_backend():
    program = "import keras, sys; import keras_parseval; print(*sorted(sys.modules))"
    plain, ours = (
        subprocess.run([sys.executable, "-c", each], capture_output=True, text=True, check=True)
        for each in (program.replace("import keras_parseval; ", ""), program)
    )
    added = {name.split(".")[0] for name in ours.stdout.split()} - {
        name.split(".")[0] for name in plain.stdout.split()
    }
    assert added <= {"keras_parseval"} | sys.stdlib_module_names
