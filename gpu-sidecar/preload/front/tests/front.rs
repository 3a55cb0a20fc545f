//! The library loaded into programs, with a driver and a core in place of the real ones.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Where cargo has put the library that belongs to this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libweir_preload.so");
    assert!(library.exists(), "{library:?}");
    library
}

/// The library, a driver, a core and a program, all in a folder.
struct Place(TempDir);

/// What a program did: its exit code is 0, and this is what it wrote on standard error.
type Said = Vec<String>;

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::copy(library(), place.file("libweir_preload.so")).unwrap();
        let driver = place.file("libcuda.so.1");
        place.compile(
            "driver.c",
            &driver,
            &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"],
        );
        let core = place.file("libweir_preload_core.so");
        place.compile("core.c", &core, &["-shared", "-fPIC", "-ldl"]);
        place.compile("program.c", &place.file("program"), &["-ldl", "-lpthread"]);
        place
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

    fn says(command: &mut Command) -> Said {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}\n{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        said.lines().map(str::to_owned).collect()
    }

    /// What is said with the library before the driver. The `timeout` that starts the program has it as well.
    fn with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Said {
        let mut command = self.command("program");
        command.args(arguments).envs(variables.iter().copied());
        Self::says(command.env("LD_PRELOAD", self.file("libweir_preload.so")))
    }

    fn without(&self, arguments: &[&str]) -> Said {
        Self::says(self.command("program").args(arguments))
    }

    fn folder(&self) -> String {
        format!("folder {}", self.0.path().display())
    }
}

#[test]
fn a_program_without_a_gpu_is_left_alone() {
    let place = Place::new();
    assert!(place.with(&[], &[]).is_empty());
    let mut command = Command::new("sh");
    command.args(["-c", "ls / | sort | wc -l"]);
    let library = place.file("libweir_preload.so");
    assert!(Place::says(command.env("LD_PRELOAD", library)).is_empty());
}

#[test]
fn a_look_up_by_handle_gets_what_the_core_says() {
    let place = Place::new();
    assert!(place.without(&["handle"]).is_empty());
    let said = place.with(&["handle", "wrapped"], &[]);
    assert_eq!(
        said,
        [
            &*place.folder(),
            "wrap cuInit",
            "wrap cuInit",
            "wrap cuMemAlloc_v2",
            "wrap cuMemAlloc",
            "unknown cuFromSomeLaterVersion",
        ]
    );
}

#[test]
fn a_look_up_everywhere_finds_what_it_would_find_without_us() {
    let place = Place::new();
    assert!(place.without(&["default"]).is_empty());
    let said = place.with(&["default", "wrapped"], &[]);
    // The program is given the exported function, and the first call of it is seen.
    assert_eq!(said, [&*place.folder(), "wrap cuInit"]);
}

#[test]
fn threads_that_begin_together_all_get_wrappers() {
    let place = Place::new();
    place.without(&["threads"]);
    for _ in 0..10 {
        let said = place.with(&["threads", "wrapped"], &[]);
        let wraps = said.iter().filter(|line| *line == "wrap cuInit").count();
        assert_eq!(wraps, 32, "{said:?}");
    }
}

#[test]
fn a_program_linked_to_the_driver_gets_what_the_core_says() {
    let place = Place::new();
    let linked = place.file("program");
    let folder = format!("-L{}", place.0.path().display());
    let options = ["-DLINKED", &folder, "-l:libcuda.so.1", "-ldl", "-lpthread"];
    place.compile("program.c", &linked, &options);
    assert!(place.without(&["link"]).is_empty());
    let said = place.with(&["link", "wrapped"], &[]);
    let expected = ["wrap cuLaunchKernel", "wrap cuInit", "wrap cuMemAlloc_v2"];
    assert_eq!(said[0], place.folder());
    assert_eq!(said[1..], expected);
}

#[test]
fn a_child_is_served_as_its_parent_is() {
    let place = Place::new();
    place.without(&["fork"]);
    place.with(&["fork", "wrapped"], &[]);
}

#[test]
fn a_core_that_looks_for_the_driver_gets_the_driver() {
    let place = Place::new();
    let said = place.with(&["threads", "wrapped"], &[("CORE_RECURSES", "1")]);
    assert_eq!(
        said.iter().filter(|line| *line == "same cuInit").count(),
        32
    );
    assert!(
        !said.iter().any(|line| line.starts_with("other")),
        "{said:?}"
    );
}

#[test]
fn without_a_core_that_fits_all_passes_and_one_line_says_so() {
    let place = Place::new();
    let end = ": calls pass to the driver unchanged";
    for (variable, value, what) in [
        ("WEIR_PRELOAD_CORE", "/nowhere/core.so", "/nowhere/core.so"),
        ("WEIR_PRELOAD_CORE", "libm.so.6", "is not what it should be"),
        ("CORE_REFUSES", "1", "cannot work here"),
        ("CORE_IS_NEWER", "1", "of another version"),
    ] {
        let said = place.with(&["handle"], &[(variable, value)]);
        let lines: Vec<_> = said
            .iter()
            .filter(|line| line.starts_with("libweir_preload"))
            .collect();
        assert_eq!(lines.len(), 1, "{said:?}");
        assert!(
            lines[0].contains(what) && lines[0].ends_with(end),
            "{said:?}"
        );
        // And with many at once.
        let said = place.with(&["threads"], &[(variable, value)]);
        let lines = said
            .iter()
            .filter(|line| line.starts_with("libweir_preload"));
        assert_eq!(lines.count(), 1, "{said:?}");
    }
}

#[test]
fn another_file_can_be_named_as_the_core() {
    let place = Place::new();
    let other = place.file("other.so");
    std::fs::rename(place.file("libweir_preload_core.so"), &other).unwrap();
    let said = place.with(
        &["handle", "wrapped"],
        &[("WEIR_PRELOAD_CORE", other.to_str().unwrap())],
    );
    assert_eq!(said[0], place.folder());
}

#[test]
fn a_function_of_another_library_is_left_as_it_is() {
    let place = Place::new();
    // The same functions in a file that is not the driver's.
    let other = place.file("libother.so");
    place.compile(
        "driver.c",
        &other,
        &["-shared", "-fPIC", "-Wl,-soname,libother.so"],
    );
    let folder = format!("-L{}", place.0.path().display());
    let options = ["-DLINKED", &folder, "-l:libother.so", "-ldl", "-lpthread"];
    place.compile("program.c", &place.file("program"), &options);
    assert!(place.with(&["link"], &[]).is_empty());
}
