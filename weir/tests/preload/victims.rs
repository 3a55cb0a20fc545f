//! Every program of `tests/cuda/victims`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use softgpu_harness::node::{LIBRARIES, Node, library, without_softgpu};
use softgpu_harness::programs::{ptx, sources};

/// A folder with the preload library and the programs and libraries built by a test, beside a software GPU.
struct Victims {
    folder: TempDir,
    node: Node,
}

/// Number of calls of the core's wrapper function, for each process that loaded it and ended by itself.
type WrapCounts = Vec<u32>;

impl Victims {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let victims = Self {
            folder,
            node: Node::h100(),
        };
        std::fs::copy(library(LIBRARIES[0]), victims.preload()).unwrap();
        let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload/passing.c");
        victims.compile(&core, "libweir_preload_core.so", &["-shared", "-fPIC"]);
        victims
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn preload(&self) -> PathBuf {
        self.file("libweir_preload.so")
    }

    /// Returns the pod's library, with the real core.
    fn of_pod(&self) -> PathBuf {
        self.node.gate("pod").join(LIBRARIES[0])
    }

    fn compile(&self, source: &Path, name: &str, options: &[&str]) {
        let output = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(self.file(name))
            .arg(source)
            .args(options)
            .args(["-ldl", "-lpthread"])
            .output()
            .expect("the C programs are built with `cc`: install gcc");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {printed}", source.display());
    }

    /// Builds a program in the folder.
    fn program(&self, name: &str, options: &[&str]) {
        let source = sources().join(format!("victims/{name}.c"));
        self.compile(&source, name, options);
    }

    /// Builds a library that programs open by its name.
    fn library(&self, name: &str, options: &[&str]) {
        let source = sources().join(format!("victims/{name}.c"));
        let soname = format!("-Wl,-soname,lib{name}.so");
        let options = [&["-shared", "-fPIC", &soname], options].concat();
        self.compile(&source, &format!("lib{name}.so"), &options);
    }

    /// Returns the linker option for libraries in the folder.
    fn here(&self) -> String {
        format!("-L{}", self.folder.path().display())
    }

    fn driver(&self) -> String {
        format!("-L{}", self.node.softgpu.folder().display())
    }

    fn command(&self, program: &Path) -> Command {
        let softgpu = &self.node.softgpu;
        let mut command = softgpu.command(program);
        let folders = [self.folder.path(), softgpu.folder()];
        command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
        command.env("CORE_SAYS", self.file("said"));
        command.env_remove("WEIR_PRELOAD_CORE");
        command.env_remove("WEIR_GPU_SOCKET");
        command
    }

    /// Runs a program with these libraries preloaded, and returns its output, which must end with `ok`.
    fn output_of(&self, program: &str, arguments: &[&str], preloaded: &[PathBuf]) -> String {
        let mut command = self.command(&self.file(program));
        command.arg(ptx()).args(arguments);
        if !preloaded.is_empty() {
            let list: Vec<_> = preloaded
                .iter()
                .map(|path| path.to_str().unwrap())
                .collect();
            command.env("LD_PRELOAD", list.join(":"));
        }
        let output = command.output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{preloaded:?} {command:?}: {output:?}"
        );
        assert_eq!(without_softgpu(&output.stderr), "", "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.lines().next_back(), Some("ok"), "{printed}");
        printed
    }

    /// Returns and resets the core's counts.
    fn wrap_counts(&self) -> WrapCounts {
        let path = self.file("said");
        let printed = std::fs::read_to_string(&path).unwrap_or_default();
        let _was_there = std::fs::remove_file(path);
        let counts = printed.lines().map(|line| {
            let (wraps, strange) = line.split_once(' ').unwrap();
            assert_eq!(
                strange, "0",
                "the core received a function that is not the driver's"
            );
            wraps.parse().unwrap()
        });
        counts.collect()
    }

    /// Asserts that a program's output is the same with the library as without it; returns the core's counts.
    fn check_same_output(&self, program: &str) -> WrapCounts {
        let alone = self.output_of(program, &[], &[]);
        assert_eq!(self.wrap_counts(), WrapCounts::new());
        let preloaded = self.output_of(program, &[], &[self.preload()]);
        assert_eq!(alone, preloaded, "{program}");
        let wrap_counts = self.wrap_counts();
        let in_pod = self.output_of(program, &[], &[self.of_pod()]);
        assert_eq!(alone, in_pod, "{program}");
        assert_eq!(self.wrap_counts(), WrapCounts::new());
        wrap_counts
    }
}

/// Builds a program of one file that opens the driver by itself, and checks it.
fn plain(name: &str) -> WrapCounts {
    let victims = Victims::new();
    victims.program(name, &[]);
    victims.check_same_output(name)
}

fn at_least(wrap_counts: &WrapCounts, count: u32) {
    assert!(
        wrap_counts.iter().any(|wrap_counts| *wrap_counts >= count),
        "{wrap_counts:?}"
    );
}

#[test]
fn captured() {
    at_least(&plain("captured"), 100);
}

#[test]
fn closed() {
    at_least(&plain("closed"), 15);
}

#[test]
fn ends() {
    at_least(&plain("ends"), 20);
}

#[test]
fn exits() {
    plain("exits");
}

#[test]
fn globally() {
    at_least(&plain("globally"), 20);
}

#[test]
fn low() {
    plain("low");
}

#[test]
fn signals() {
    at_least(&plain("signals"), 20);
}

#[test]

fn swept() {
    at_least(&plain("swept"), 20);
}

#[test]
fn workers() {
    at_least(&plain("workers"), 20);
}

#[test]
fn deepbind() {
    let victims = Victims::new();
    victims.library("namesake_library", &[]);
    victims.program("deepbind", &[]);
    victims.check_same_output("deepbind");
}

#[test]
fn early() {
    let victims = Victims::new();
    victims.library("early_library", &[]);
    victims.program("early", &[]);
    at_least(&victims.check_same_output("early"), 8000);
}

#[test]
fn forks() {
    // The parent, and the program that the last child executes.
    let wrap_counts = plain("forks");
    assert!(wrap_counts.len() >= 2, "{wrap_counts:?}");
}

#[test]
fn late() {
    at_least(&plain("late"), 16);
}

#[test]
fn local() {
    let victims = Victims::new();
    victims.library("namesake_library", &[]);
    victims.library("local_library", &[&victims.driver(), "-l:libcuda.so.1"]);
    victims.program("local", &[]);
    at_least(&victims.check_same_output("local"), 2);
}

#[test]
fn namesake() {
    let victims = Victims::new();
    victims.library("namesake_library", &[]);
    victims.program("namesake", &[&victims.here(), "-lnamesake_library"]);
    // Only the driver's own function is looked up, once.
    assert_eq!(victims.check_same_output("namesake"), [1]);
}

#[test]
fn narrow() {
    at_least(&plain("narrow"), 20);
}

#[test]
fn nulls() {
    at_least(&plain("nulls"), 100);
}

#[test]
fn resolver() {
    at_least(&plain("resolver"), 2);
}

#[test]
fn scopes() {
    let victims = Victims::new();
    victims.library("scopes_library", &[]);
    victims.program("scopes", &[]);
    victims.check_same_output("scopes");
}

#[test]
fn versioned() {
    at_least(&plain("versioned"), 3);
}

#[test]
fn absent() {
    let victims = Victims::new();
    victims.program("absent", &[]);
    for preloaded in [None, Some(victims.preload()), Some(victims.of_pod())] {
        let mut command = victims.command(&victims.file("absent"));
        command.env("LD_LIBRARY_PATH", victims.folder.path());
        if let Some(library) = preloaded {
            command.env("LD_PRELOAD", library);
        }
        let output = command.output().unwrap();
        if String::from_utf8_lossy(&output.stderr).contains("not so: !dlopen") {
            // This machine has a driver.
            continue;
        }
        assert!(output.status.success(), "{output:?}");
    }
    // No function of the driver was looked up, so the core was not even loaded.
    assert_eq!(victims.wrap_counts(), WrapCounts::new());
}

/// A library that exports `dlsym` as well, preloaded before ours and after it.
#[test]
fn another_preloaded_library() {
    let victims = Victims::new();
    victims.library("second_preload", &[]);
    victims.library("namesake_library", &[]);
    let second = victims.file("libsecond_preload.so");
    for (name, options) in [
        ("captured", &[][..]),
        ("late", &[]),
        ("narrow", &[]),
        ("resolver", &[]),
        ("versioned", &[]),
        ("namesake", &[&*victims.here(), "-lnamesake_library"]),
    ] {
        victims.program(name, options);
        let alone = victims.output_of(name, &[], std::slice::from_ref(&second));
        let behind = victims.output_of(name, &[], &[victims.preload(), second.clone()]);
        // Lookups that reach our library first are seen by the core.
        assert!(!victims.wrap_counts().is_empty(), "{name}");
        let before = victims.output_of(name, &[], &[second.clone(), victims.preload()]);
        victims.wrap_counts();
        assert!(alone == behind && alone == before, "{name}");
        let behind = victims.output_of(name, &[], &[victims.of_pod(), second.clone()]);
        let before = victims.output_of(name, &[], &[second.clone(), victims.of_pod()]);
        assert!(alone == behind && alone == before, "{name}");
    }
}

#[test]
fn a_program_that_uses_no_gpu_never_loads_the_core() {
    let victims = Victims::new();
    std::fs::write(
        victims.file("hello.c"),
        "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n",
    )
    .unwrap();
    victims.compile(&victims.file("hello.c"), "hello", &[]);
    victims.compile(&victims.file("hello.c"), "static", &["-static"]);
    for (program, arguments) in [
        ("true", &[][..]),
        (
            "sh",
            &[
                "-c",
                "echo hello | cat | sort >/dev/null && ls / | wc -l >/dev/null",
            ],
        ),
        ("hello", &[]),
        ("static", &[]),
    ] {
        let own = victims.file(program);
        let program = if own.exists() { own } else { program.into() };
        let mut command = victims.command(&program);
        command.args(arguments).env("LD_PRELOAD", victims.preload());
        let output = command.output().unwrap();
        assert!(
            output.status.success() && without_softgpu(&output.stderr).is_empty(),
            "{output:?}"
        );
    }
    assert_eq!(victims.wrap_counts(), WrapCounts::new());
}
