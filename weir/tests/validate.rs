//! Tests of `weir simulate validate` as a user runs it, without the live demo, which takes minutes and a quiet machine.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

const HOPS: &str =
    "stock-ns = [[900000, 400000], [1100000, 500000]]\nweir-ns = [[1000000, 450000]]\n";
const MESSAGE: &str = "message-us = 50.0\n";

fn validate(hops: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hops.toml");
    fs::write(&path, hops).unwrap();
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["simulate", "validate", "--simulated-only", "--hops"])
        .arg(&path)
        .args(more)
        .output()
        .unwrap()
}

fn figures(hops: &str, more: &[&str]) -> Vec<Value> {
    let output = validate(hops, &[more, &["--json"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
    let again = validate(hops, &[more, &["--json"]].concat());
    assert_eq!(again.stdout, output.stdout, "the same each time");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn figure(all: &[Value], case: &str, what: &str) -> f64 {
    let own = |row: &&Value| row["case"] == case && row["what"] == what;
    all.iter().find(own).unwrap()["simulated"].as_f64().unwrap()
}

#[test]
fn simulated_loads_are_reproducible() {
    let all = figures(HOPS, &["--seconds", "10"]);
    assert_eq!(all.len(), 12);
    for load in ["0.4", "0.55", "0.7"] {
        let in_time = |settings| figure(&all, &format!("load {load}, {settings}"), "in time, %");
        let (stock, weir) = (in_time("stock"), in_time("weir"));
        assert!(
            stock < weir && (20.0..100.0).contains(&stock),
            "{stock} {weir}"
        );
    }
    // Hops of 30 ms are noticeable with requests of some 55 ms.
    let far = "stock-ns = [[900000, 30000000]]\nweir-ns = [[1000000, 30000000]]\n";
    let slow = figures(far, &["--seconds", "10"]);
    let in_time = |all: &[Value]| figure(all, "load 0.7, weir", "in time, %");
    assert!(in_time(&slow) < in_time(&all));
    let other = figures(HOPS, &["--seconds", "10", "--seed", "2", "--loads", "0.7"]);
    assert_eq!(other.len(), 4);
    assert!((in_time(&other) - in_time(&all)).abs() > 0.01);
}

#[test]
fn simulated_shared_gpus_are_reproducible() {
    let all = figures(MESSAGE, &["--scenario", "shares"]);
    let share = |pod: u32| figure(&all, &format!("10:90, weir, pod-{pod}"), "share, %");
    assert!((share(1) - 10.0).abs() < 1.0 && (share(2) - 90.0).abs() < 2.0);
}

#[test]
fn usage_errors_name_the_cause() {
    for (hops, more, expected) in [
        (
            "stock-ns = []\nweir-ns = []",
            &[][..],
            "hops.toml: stock-ns has 0 hops; allowed: 1 to 100000",
        ),
        ("stock-ns = [[-1, 1]]", &[][..], "line 1"),
        (HOPS, &["--scenario", "shares"][..], "message-us"),
        (
            MESSAGE,
            &["--scenario", "shares", "--loads", "0.5"][..],
            "--loads belongs to --scenario deadline",
        ),
        (HOPS, &["--loads", "0"][..], "a number above 0"),
        (HOPS, &["--rounds", "3"][..], "--simulated-only"),
        (HOPS, &["--write-hops", "other.toml"][..], "--hops"),
    ] {
        let output = validate(hops, more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            output.stdout.is_empty() && stderr.contains(expected),
            "{stderr}"
        );
    }
}
