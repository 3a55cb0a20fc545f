//! Build-script support which keeps preload libraries loadable by glibc 2.28 and later, whatever glibc the build machine has.
//!
//! A shared library requires each glibc function in the version that the linker resolved, which is the newest one of the build
//! machine. A container image with an older glibc then fails to load it. [`link`] gives the linker stub libraries in place of
//! glibc's: they have the same names, no code, and each function in the version that it had in glibc 2.28. The stubs are used for
//! linking only and are not shipped.
//!
//! A function missing from the list is still linked, without a version. The libraries' tests fail on a symbol without a version
//! and on any version above [`FLOOR`].
//!
//! Deliberately absent: a copy of an older glibc. Start reading in [`link`].
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Newest glibc version that a library may require, as major and minor.
pub const FLOOR: (u32, u32) = (2, 28);

const SYMBOLS: &str = include_str!("../symbols.txt");
const LATE: &str = include_str!("late.c");

/// Symbol name and, for data, its size in bytes.
type Symbol<'a> = (&'a str, Option<&'a str>);
/// Symbols of one file, grouped by their version.
type Versions<'a> = BTreeMap<(u32, u32, u32), Vec<Symbol<'a>>>;

/// Configures linking of the package's cdylib so that it requires no symbol newer than [`FLOOR`]. Does nothing on targets other
/// than 64-bit GNU/Linux.
///
/// # Panics
///
/// Panics without a C compiler, which linking needs as well, and outside a build script, where cargo's variables are missing.
pub fn link() {
    cargo_instruction("rerun-if-changed=build.rs");
    cargo_instruction("rerun-if-env-changed=CC");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let machine = variable("CARGO_CFG_TARGET_ARCH");
    let is_gnu = variable("CARGO_CFG_TARGET_OS") == "linux"
        && variable("CARGO_CFG_TARGET_ENV") == "gnu"
        && variable("CARGO_CFG_TARGET_POINTER_WIDTH") == "64";
    if !is_gnu {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR must be set by cargo"));
    let folder = out.join("floor");
    fs::create_dir_all(&folder).expect("OUT_DIR must be writable");
    let mut script = String::new();
    for (file, versions) in parse(SYMBOLS, &machine) {
        let stub = stub(&folder, &file, &versions);
        let line = format!("GROUP ( AS_NEEDED ( {} ) )\n", stub.display());
        // `-ldl` and the like would otherwise find the real library on a machine with an older glibc.
        if let Some((short, _)) = file.split_once(".so.") {
            write(&folder.join(format!("{short}.so")), &line);
        }
        script.push_str(&line);
    }
    write(&folder.join("libc.so"), &script);
    let object = folder.join("late.o");
    let source = folder.join("late.c");
    write(&source, LATE);
    compile(
        &["-c", "-O2", "-fPIC", "-ffunction-sections", "-w"],
        &source,
        &object,
    );
    cargo_instruction(&format!("rustc-cdylib-link-arg=-L{}", folder.display()));
    cargo_instruction(&format!("rustc-cdylib-link-arg={}", object.display()));
}

#[expect(
    clippy::print_stdout,
    reason = "cargo reads a build script's instructions from standard output"
)]
fn cargo_instruction(instruction: &str) {
    println!("cargo::{instruction}");
}

/// Returns the first symbol version of an architecture's glibc interface. Older functions have this version there.
fn base(machine: &str) -> (u32, u32, u32) {
    match machine {
        "x86_64" => (2, 2, 5),
        "aarch64" => (2, 17, 0),
        "riscv64" => (2, 27, 0),
        _ => (2, 0, 0),
    }
}

/// Parses the list into symbols by file and version, for one architecture.
fn parse<'a>(list: &'a str, machine: &str) -> BTreeMap<String, Versions<'a>> {
    let mut files = BTreeMap::<String, Versions<'_>>::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (Some(file), Some(version)) = (words.next(), words.next()) else {
            continue;
        };
        let file = match (file, machine) {
            ("ld-linux", "x86_64") => "ld-linux-x86-64.so.2",
            ("ld-linux", "aarch64") => "ld-linux-aarch64.so.1",
            ("ld-linux", _) => continue,
            (file, _) => file,
        };
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        let mut number = || numbers.next().unwrap_or(0);
        let version = (number(), number(), number()).max(base(machine));
        let symbols = words.map(|word| match word.split_once('=') {
            Some((name, size)) => (name, Some(size)),
            None => (word, None),
        });
        let versions = files.entry(file.to_owned()).or_default();
        versions.entry(version).or_default().extend(symbols);
    }
    files
}

fn version_text(version: (u32, u32, u32)) -> String {
    match version {
        (major, minor, 0) => format!("GLIBC_{major}.{minor}"),
        (major, minor, patch) => format!("GLIBC_{major}.{minor}.{patch}"),
    }
}

/// Builds a stub library with this file name and these symbols, and returns its path.
fn stub(folder: &Path, name: &str, versions: &Versions<'_>) -> PathBuf {
    let mut source = String::new();
    let mut map = String::new();
    for (version, symbols) in versions {
        write!(map, "{} {{ global:", version_text(*version))
            .expect("writing to a String cannot fail");
        for (symbol, size) in symbols {
            write!(map, " {symbol};").expect("writing to a String cannot fail");
            let (section, kind, size) = match size {
                Some(size) => (".data", "object", size),
                None => (".text", "function", &"4"),
            };
            writeln!(
                source,
                "{section}\n.globl {symbol}\n.type {symbol}, %{kind}\n.size {symbol}, {size}\n{symbol}: .zero {size}"
            )
            .expect("writing to a String cannot fail");
        }
        map.push_str(" };\n");
    }
    source.push_str(".section .note.GNU-stack,\"\",%progbits\n");
    let path = folder.join(name);
    let [source_path, map_path] = ["s", "map"].map(|end| folder.join(format!("{name}.{end}")));
    write(&source_path, &source);
    write(&map_path, &map);
    let script = format!("-Wl,--version-script={}", map_path.display());
    let soname = format!("-Wl,-soname,{name}");
    compile(
        &["-shared", "-nostdlib", &script, &soname],
        &source_path,
        &path,
    );
    path
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("OUT_DIR must be writable");
}

fn compile(options: &[&str], source: &Path, result: &Path) {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(options).arg(source).arg("-o").arg(result);
    let status = command.status();
    let is_success = status.as_ref().is_ok_and(std::process::ExitStatus::success);
    assert!(is_success, "the C compiler failed: {command:?}: {status:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_symbol_is_newer_than_the_floor_or_listed_twice() {
        for machine in ["x86_64", "aarch64"] {
            let mut seen = std::collections::BTreeSet::new();
            for (file, versions) in parse(SYMBOLS, machine) {
                for (version, symbols) in versions {
                    assert!((version.0, version.1) <= FLOOR, "{file} {version:?}");
                    for (symbol, _) in symbols {
                        assert!(seen.insert(symbol.to_owned()), "{symbol}");
                    }
                }
            }
            assert!(seen.contains("dlvsym") && seen.contains("memcpy"));
        }
    }

    #[test]
    fn versions_are_raised_to_the_first_one_of_the_architecture() {
        let list = "libc.so.6 2.2.5 malloc\nlibc.so.6 2.18 stderr=8\nld-linux 2.3 __tls_get_addr\n";
        let files = parse(list, "aarch64");
        let versions: Vec<_> = files["libc.so.6"]
            .keys()
            .copied()
            .map(version_text)
            .collect();
        assert_eq!(versions, ["GLIBC_2.17", "GLIBC_2.18"]);
        assert_eq!(files["libc.so.6"][&(2, 18, 0)], [("stderr", Some("8"))]);
        assert!(files.contains_key("ld-linux-aarch64.so.1"));
        let files = parse(list, "x86_64");
        let versions: Vec<_> = files["libc.so.6"]
            .keys()
            .copied()
            .map(version_text)
            .collect();
        assert_eq!(versions, ["GLIBC_2.2.5", "GLIBC_2.18"]);
    }
}
