//! Every program of `tests/cuda/victims`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::build::{ptx, sources};
use crate::node::{LIBRARIES, Node, library, without_softgpu};

/// A folder with the preload library and whatever programs and libraries a test has built, beside a software GPU.
struct Victims {
    folder: TempDir,
    node: Node,
}

/// How often the core was asked for a wrapper, in each process that has ended by itself and had it.
type Asked = Vec<u32>;

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

    /// The library in the pod, whose core is the real one.
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
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", source.display());
    }

    /// Builds a program.
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

    /// An option for the linker: libraries are there.
    fn here(&self) -> String {
        format!("-L{}", self.folder.path().display())
    }

    fn driver(&self) -> String {
        format!("-L{}", self.node.place.folder().display())
    }

    fn command(&self, program: &Path) -> Command {
        let place = &self.node.place;
        let mut command = place.command(program);
        let folders = [self.folder.path(), place.folder()];
        command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
        command.env("CORE_SAYS", self.file("said"));
        command.env_remove("WEIR_PRELOAD_CORE");
        command.env_remove("WEIR_GPU_SOCKET");
        command
    }

    /// What a program prints, which has to come to `ok`; with these preloaded.
    fn says(&self, program: &str, arguments: &[&str], preloaded: &[PathBuf]) -> String {
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
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.lines().next_back(), Some("ok"), "{said}");
        said
    }

    /// What the core has said since this was asked.
    fn asked(&self) -> Asked {
        let path = self.file("said");
        let said = std::fs::read_to_string(&path).unwrap_or_default();
        let _was_there = std::fs::remove_file(path);
        let counts = said.lines().map(|line| {
            let (wraps, strange) = line.split_once(' ').unwrap();
            assert_eq!(
                strange, "0",
                "the core was shown something that is not the driver's"
            );
            wraps.parse().unwrap()
        });
        counts.collect()
    }

    /// A program does the same with the library as without it; how often the core was asked.
    fn does_the_same(&self, program: &str) -> Asked {
        let alone = self.says(program, &[], &[]);
        assert_eq!(self.asked(), Asked::new());
        let preloaded = self.says(program, &[], &[self.preload()]);
        assert_eq!(alone, preloaded, "{program}");
        let asked = self.asked();
        let in_pod = self.says(program, &[], &[self.of_pod()]);
        assert_eq!(alone, in_pod, "{program}");
        assert_eq!(self.asked(), Asked::new());
        asked
    }
}

/// A program that is built of one file and opens the driver by itself.
fn plain(name: &str) -> Asked {
    let victims = Victims::new();
    victims.program(name, &[]);
    victims.does_the_same(name)
}

fn at_least(asked: &Asked, count: u32) {
    assert!(asked.iter().any(|asked| *asked >= count), "{asked:?}");
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
    victims.does_the_same("deepbind");
}

#[test]
fn early() {
    let victims = Victims::new();
    victims.library("early_library", &[]);
    victims.program("early", &[]);
    at_least(&victims.does_the_same("early"), 8000);
}

#[test]
fn forks() {
    // The parent, and the program that the last child becomes.
    let asked = plain("forks");
    assert!(asked.len() >= 2, "{asked:?}");
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
    at_least(&victims.does_the_same("local"), 2);
}

#[test]
fn namesake() {
    let victims = Victims::new();
    victims.library("namesake_library", &[]);
    victims.program("namesake", &[&victims.here(), "-lnamesake_library"]);
    // The driver's own is looked up once.
    assert_eq!(victims.does_the_same("namesake"), [1]);
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
    victims.does_the_same("scopes");
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
    // Nothing of the driver's was there to ask about, so that the core was not even loaded.
    assert_eq!(victims.asked(), Asked::new());
}

/// A library that exports `dlsym` as well, before ours and behind it.
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
        let alone = victims.says(name, &[], std::slice::from_ref(&second));
        let behind = victims.says(name, &[], &[victims.preload(), second.clone()]);
        // What comes to us first is seen by us.
        assert!(!victims.asked().is_empty(), "{name}");
        let before = victims.says(name, &[], &[second.clone(), victims.preload()]);
        victims.asked();
        assert!(alone == behind && alone == before, "{name}");
        let behind = victims.says(name, &[], &[victims.of_pod(), second.clone()]);
        let before = victims.says(name, &[], &[second.clone(), victims.of_pod()]);
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
    assert_eq!(victims.asked(), Asked::new());
}
