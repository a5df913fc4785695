"""The programs that bench-sampler.py and compare-heap-profilers.py run."""

import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = "x = [str(n) for n in range(200_000)]\nfor _ in range(200): x = [y + '.' for y in x if y]\nprint(len(x))"
SQL = """
create table t(a integer primary key, b text);
with recursive n(i) as (select 1 union all select i + 1 from n limit 1500000)
insert into t select i, 'row ' || i from n;
select count(*), sum(length(b)) from t where b like '%7%';
select substr(b, 1, 6) as k, count(*) from t group by k order by 2 desc limit 3;
"""


def compile_c(to, *args):
    """Compiles C sources with optimization; returns the program's or library's path."""
    subprocess.run(["clang", "-O2", *map(str, args), "-o", str(to)], check=True)
    return to


def malloc_loop(directory):
    """The path of the compiled malloc_loop.c."""
    return compile_c(directory / "malloc_loop", "-fno-builtin", ROOT / "benches/workloads/malloc_loop.c")


def rustc(directory):
    """A command that compiles a small crate; None without rustc. (rustc's allocator is jemalloc, linked statically.)"""
    program = shutil.which("rustup")
    found = [program, "which", "rustc"] if program else ["which", "rustc"]
    path = subprocess.run(found, capture_output=True, text=True, check=False).stdout.strip()
    if not path:
        return None
    derives = "Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default"
    source = directory / "small.rs"
    source.write_text(
        "".join(f"#[derive({derives})] pub struct S{n} {{ pub a: Vec<u64>, pub b: String }}\n" for n in range(40))
    )
    return [path, "-O", "--crate-type=lib", "--out-dir", str(directory), str(source)]


class Postgres:
    """A private PostgreSQL server, run by the user that its package created."""

    def __init__(self, env):
        self.programs = next(iter(sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))), None)
        if not self.programs:
            raise FileNotFoundError("PostgreSQL is not installed")
        self.own = tempfile.TemporaryDirectory()
        self.place = self.own.name
        user = pwd.getpwnam("postgres")
        os.chown(self.place, user.pw_uid, user.pw_gid)
        self.options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": self.place}
        self.run("initdb", "-D", "data", "-A", "trust", "-N")
        quiet = ["listen_addresses=", "fsync=off", "autovacuum=off"]
        args = [word for setting in quiet for word in ("-c", setting)]
        line = [self.programs / "postgres", "-D", "data", "-k", self.place, *args]
        self.server = subprocess.Popen(
            line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self.options
        )
        while self.run("pg_isready", "-q", check=False):
            time.sleep(0.05)

    def run(self, program, *args, check=True):
        """Runs one of its programs to its end; returns the exit status."""
        env = {**os.environ, "PGHOST": self.place, "PGDATABASE": "postgres"}
        env.pop("LD_PRELOAD", None)
        done = subprocess.run(
            [self.programs / program, *args],
            env=env,
            check=check,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self.options,
        )
        return done.returncode

    def end(self):
        """Ends the server, and waits for it; its processes' times are those of this process's children then."""
        self.server.terminate()
        self.server.wait()
        self.own.cleanup()
