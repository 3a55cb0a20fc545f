//! The library preloaded into programs, with stand-ins for the driver and the core.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Returns the path of the library that cargo built for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libweir_preload.so");
    assert!(library.exists(), "{library:?}");
    library
}

/// Folder with the library, a driver, a core and a program.
struct TestDir(TempDir);

/// Lines that a program wrote to standard error before it exited with code 0.
type Lines = Vec<String>;

impl TestDir {
    fn new() -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        std::fs::copy(library(), dir.file("libweir_preload.so")).unwrap();
        let driver = dir.file("libcuda.so.1");
        dir.compile(
            "driver.c",
            &driver,
            &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"],
        );
        let core = dir.file("libweir_preload_core.so");
        dir.compile("core.c", &core, &["-shared", "-fPIC", "-ldl"]);
        dir.compile("program.c", &dir.file("program"), &["-ldl", "-lpthread"]);
        dir
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn compile(&self, source: &str, result: &Path, options: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests")
            .join(source);
        let output = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(result)
            .arg(source)
            .args(options)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "60"])
            .arg(self.file(program))
            .env_remove("WEIR_PRELOAD_CORE")
            .env("LD_LIBRARY_PATH", self.0.path())
            .current_dir("/");
        command
    }

    fn stderr_of(command: &mut Command) -> Lines {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}\n{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Runs the program with the library preloaded. The library is loaded into `timeout`, which starts the program, as well.
    fn with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Lines {
        let mut command = self.command("program");
        command.args(arguments).envs(variables.iter().copied());
        Self::stderr_of(command.env("LD_PRELOAD", self.file("libweir_preload.so")))
    }

    fn without(&self, arguments: &[&str]) -> Lines {
        Self::stderr_of(self.command("program").args(arguments))
    }

    fn folder(&self) -> String {
        format!("folder {}", self.0.path().display())
    }
}

#[test]
fn a_program_that_uses_no_gpu_loads_no_core() {
    let dir = TestDir::new();
    assert!(dir.with(&[], &[]).is_empty());
    let mut command = Command::new("sh");
    command.args(["-c", "ls / | sort | wc -l"]);
    let library = dir.file("libweir_preload.so");
    assert!(TestDir::stderr_of(command.env("LD_PRELOAD", library)).is_empty());
}

#[test]
fn a_look_up_by_handle_returns_the_cores_wrapper() {
    let dir = TestDir::new();
    assert!(dir.without(&["handle"]).is_empty());
    let lines = dir.with(&["handle", "wrapped"], &[]);
    assert_eq!(
        lines,
        [
            &*dir.folder(),
            "wrap cuInit",
            "wrap cuInit",
            "wrap cuMemAlloc_v2",
            "wrap cuMemAlloc",
            "unknown cuFromSomeLaterVersion",
        ]
    );
}

#[test]
fn a_global_look_up_finds_a_function_only_if_a_driver_has_it() {
    let dir = TestDir::new();
    assert!(dir.without(&["default"]).is_empty());
    let lines = dir.with(&["default", "wrapped"], &[]);
    // The program gets the exported function, and the core is queried at its first call.
    assert_eq!(lines, [&*dir.folder(), "wrap cuInit"]);
}

#[test]
fn threads_that_start_at_once_all_get_wrappers() {
    let dir = TestDir::new();
    dir.without(&["threads"]);
    for _ in 0..10 {
        let lines = dir.with(&["threads", "wrapped"], &[]);
        let wraps = lines.iter().filter(|line| *line == "wrap cuInit").count();
        assert_eq!(wraps, 32, "{lines:?}");
    }
}

#[test]
fn a_program_linked_to_the_driver_calls_the_cores_wrappers() {
    let dir = TestDir::new();
    let linked = dir.file("program");
    let folder = format!("-L{}", dir.0.path().display());
    let options = ["-DLINKED", &folder, "-l:libcuda.so.1", "-ldl", "-lpthread"];
    dir.compile("program.c", &linked, &options);
    assert!(dir.without(&["link"]).is_empty());
    let lines = dir.with(&["link", "wrapped"], &[]);
    let expected = ["wrap cuLaunchKernel", "wrap cuInit", "wrap cuMemAlloc_v2"];
    assert_eq!(lines[0], dir.folder());
    assert_eq!(lines[1..], expected);
}

#[test]
fn a_forked_child_gets_the_same_wrappers() {
    let dir = TestDir::new();
    dir.without(&["fork"]);
    dir.with(&["fork", "wrapped"], &[]);
}

#[test]
fn a_look_up_by_the_core_returns_the_drivers_function() {
    let dir = TestDir::new();
    let lines = dir.with(&["threads", "wrapped"], &[("CORE_RECURSES", "1")]);
    assert_eq!(
        lines.iter().filter(|line| *line == "same cuInit").count(),
        32
    );
    assert!(
        !lines.iter().any(|line| line.starts_with("other")),
        "{lines:?}"
    );
}

#[test]
fn without_a_usable_core_calls_pass_and_one_line_reports_it() {
    let dir = TestDir::new();
    let end = ": calls pass to the driver unchanged";
    for (variable, value, reason) in [
        ("WEIR_PRELOAD_CORE", "/nowhere/core.so", "/nowhere/core.so"),
        (
            "WEIR_PRELOAD_CORE",
            "libm.so.6",
            "has no entry weir_preload_core",
        ),
        ("CORE_REFUSES", "1", "cannot be used in this process"),
        ("CORE_IS_NEWER", "1", "has another interface version"),
    ] {
        let lines = dir.with(&["handle"], &[(variable, value)]);
        let reports: Vec<_> = lines
            .iter()
            .filter(|line| line.starts_with("libweir_preload"))
            .collect();
        assert_eq!(reports.len(), 1, "{lines:?}");
        assert!(
            reports[0].contains(reason) && reports[0].ends_with(end),
            "{lines:?}"
        );
        // The same with many threads at once.
        let lines = dir.with(&["threads"], &[(variable, value)]);
        let reports = lines
            .iter()
            .filter(|line| line.starts_with("libweir_preload"));
        assert_eq!(reports.count(), 1, "{lines:?}");
    }
}

#[test]
fn a_variable_selects_another_core() {
    let dir = TestDir::new();
    let other = dir.file("other.so");
    std::fs::rename(dir.file("libweir_preload_core.so"), &other).unwrap();
    let lines = dir.with(
        &["handle", "wrapped"],
        &[("WEIR_PRELOAD_CORE", other.to_str().unwrap())],
    );
    assert_eq!(lines[0], dir.folder());
}

#[test]
fn a_function_of_another_library_is_not_wrapped() {
    let dir = TestDir::new();
    // The same functions in a file that is not the driver's.
    let other = dir.file("libother.so");
    dir.compile(
        "driver.c",
        &other,
        &["-shared", "-fPIC", "-Wl,-soname,libother.so"],
    );
    let folder = format!("-L{}", dir.0.path().display());
    let options = ["-DLINKED", &folder, "-l:libother.so", "-ldl", "-lpthread"];
    dir.compile("program.c", &dir.file("program"), &options);
    assert!(dir.with(&["link"], &[]).is_empty());
}
