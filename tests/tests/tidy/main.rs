//! What holds for the repository as a whole.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arrows;
mod citations;
mod documents;
mod files;
mod language;

use std::collections::BTreeSet;
use std::fs;

use files::{read, root};

fn contract_sources() -> Vec<(String, String)> {
    let folder = root().join("tests/tests/contract");
    let mut sources: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (
                name.trim_end_matches(".rs").to_owned(),
                fs::read_to_string(entry.path()).unwrap(),
            )
        })
        .collect();
    sources.sort();
    sources
}

/// The names of all tests, as `module::function`.
fn contract_tests() -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for (module, source) in contract_sources() {
        let mut is_test = false;
        for line in source.lines() {
            if let Some(rest) = line.strip_prefix("async fn ").filter(|_| is_test) {
                tests.insert(format!("{module}::{}", rest.split('(').next().unwrap()));
            }
            is_test = line == "#[tokio::test]";
        }
    }
    tests
}

#[test]
fn policy_uses_only_platform_independent_functions() {
    let manifest = read("policy/Cargo.toml");
    let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (own, _) = rest.split_once("\n[").unwrap();
    assert_eq!(own.trim(), "libm.workspace = true\nunits.workspace = true");
    assert!(read("policy/units/Cargo.toml").contains("\n[dependencies]\n\n["));
}

/// Members made of C interfaces or of shared memory, whose own manifests say how much `unsafe` there is. The workspace's
/// lints, which forbid it, hold for all others.
const UNSAFE_MEMBERS: [&str; 7] = [
    "gpu-sidecar/agent/pages",
    "gpu-sidecar/model-server",
    "gpu-sidecar/preload/core",
    "gpu-sidecar/preload/front",
    "gpu-sidecar/softgpu/cuda",
    "gpu-sidecar/softgpu/nvml",
    "gpu-sidecar/softgpu/wire",
];

#[test]
fn unsafe_code_is_confined_to_the_listed_members() {
    assert!(read("Cargo.toml").contains("unsafe_code = \"forbid\""));
    let manifest = read("Cargo.toml");
    let (_, rest) = manifest.split_once("members = [").unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    let members = list.split('"').skip(1).step_by(2);
    let mut seen = 0;
    for member in members {
        let own = read(&format!("{member}/Cargo.toml"));
        let inherits = own.contains("[lints]\nworkspace = true");
        assert_ne!(inherits, UNSAFE_MEMBERS.contains(&member), "{member}");
        seen += 1;
    }
    assert!(seen > UNSAFE_MEMBERS.len());
    for pure in [
        "policy",
        "queue-proxy",
        "gpu-sidecar/device",
        "gpu-sidecar/kernels",
        "gpu-sidecar/preload/ops",
        "gpu-sidecar/preload/state",
    ] {
        let lib = read(&format!("{pure}/src/lib.rs"));
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{pure}");
    }
}

#[test]
fn the_model_of_the_gpu_is_pure() {
    let manifest = read("gpu-sidecar/device/Cargo.toml");
    for foreign in ["tokio", "rustix", "libc", "softgpu", "tracing"] {
        assert!(!manifest.contains(&format!("\n{foreign}")), "{foreign}");
    }
}

#[test]
fn policy_has_all_clippy_settings_of_the_workspace() {
    // Clippy reads the nearest file and merges nothing.
    let own = read("policy/clippy.toml");
    for line in read("clippy.toml")
        .lines()
        .filter(|line| line.trim_start().starts_with("{ path"))
    {
        assert!(own.contains(line), "missing in policy/clippy.toml: {line}");
    }
}

#[test]
fn the_lock_file_respects_version_floors() {
    let lock = read("Cargo.lock");
    let mut versions = Vec::new();
    let mut name = "";
    for line in lock.lines() {
        if let Some(value) = line.strip_prefix("name = ") {
            name = value.trim_matches('"');
        } else if let Some(value) = line.strip_prefix("version = ") {
            versions.push((name, value.trim_matches('"')));
        }
    }
    // RUSTSEC-2026-0258: unbounded empty DATA frames. RUSTSEC-2026-0285. RUSTSEC-2026-0049 and what followed.
    for (package, floor) in [
        ("h2", [0, 4, 16]),
        ("rustls", [0, 23, 45]),
        ("rustls-webpki", [0, 103, 13]),
    ] {
        let found = versions.iter().filter(|(name, _)| *name == package);
        for (_, version) in found {
            let parts: Vec<u32> = version
                .split('.')
                .map(|part| part.parse().unwrap())
                .collect();
            assert!(parts >= floor.to_vec(), "{package} {version}");
        }
    }
}

/// The parser of queries, which brings packages that are banned.
const PROMQL: &str = "promql-parser";

/// Returns the names of packages that `cargo tree` lists.
fn packages(output: std::process::Output) -> BTreeSet<String> {
    assert!(output.status.success(), "{output:?}");
    let tree = String::from_utf8(output.stdout).unwrap();
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn no_shipped_program_parses_queries() {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--edges", "no-dev"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(["-p", "weir", "-p", "queue-proxy", "-p", "activator-ext"])
        .args(["-p", "gpu-sidecar", "-p", "model-server"])
        .current_dir(root())
        .output()
        .unwrap();
    let packages = packages(output);
    assert!(packages.contains("weir") && !packages.contains(PROMQL));
}

#[test]
fn no_program_contains_a_banned_package() {
    // The lock file lists what optional features would bring as well.
    let output = std::process::Command::new(env!("CARGO"))
        .args([
            "tree",
            "--workspace",
            "--locked",
            "--offline",
            "--prefix",
            "none",
            // Only tests depend on it: see `no_shipped_program_parses_queries`.
            "--prune",
            PROMQL,
        ])
        .args(["--format", "{p}"])
        .current_dir(root())
        .output()
        .unwrap();
    let packages = packages(output);
    assert!(packages.contains("aws-lc-rs"));
    for banned in [
        "ring",
        "openssl",
        "native-tls",
        "chrono",
        "protobuf",
        "serde_yaml",
        "rustls-pemfile",
        "bincode",
    ] {
        assert!(!packages.contains(banned), "{banned} is in the tree");
    }
}

#[test]
fn every_claimed_item_of_the_contract_has_a_test() {
    let tests = contract_tests();
    // 39 and 49 are void.
    let claimed = [1..=38, 40..=48, 50..=138];
    for item in claimed.into_iter().flatten() {
        let prefix = format!("item_{item:03}_");
        assert!(
            tests
                .iter()
                .any(|test| test.split("::").nth(1).unwrap().starts_with(&prefix)),
            "item {item} has no test"
        );
    }
}

#[test]
fn the_contract_page_lists_every_test() {
    let page = read("docs/queue-proxy-contract.md");
    for test in contract_tests() {
        let (module, name) = test.split_once("::").unwrap();
        let Some((number, _)) = name
            .strip_prefix("item_")
            .and_then(|rest| rest.split_once('_'))
        else {
            continue;
        };
        let number: u32 = number.parse().unwrap();
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {number} |")));
        assert!(
            row.is_some_and(|row| row.contains(&format!("`{module}`"))),
            "{test} is not on the page"
        );
    }
}

#[test]
fn every_listed_difference_has_a_test() {
    let tests = contract_tests();
    let table = read("docs/queue-proxy-differences.md");
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| {
            line.starts_with("| ") && !line.starts_with("| What") && !line.starts_with("| ---")
        })
        .collect();
    assert!(rows.len() > 10);
    for row in rows {
        let last = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let named: Vec<_> = last.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test named: {row}");
        for test in named {
            assert!(tests.contains(test), "{test} is no test: {row}");
        }
    }
}

#[test]
fn no_module_is_taken_from_another_crate() {
    let out = concat!("#[path = \"", "..");
    let sources = files::sources(&["rs"]);
    let problems: Vec<&String> = sources
        .iter()
        .filter(|(_, text)| text.contains(out))
        .map(|(path, _)| path)
        .collect();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn no_test_is_disabled() {
    for (module, source) in contract_sources() {
        assert!(!source.contains("#[ignore"), "{module}");
    }
}
