//! Tests of `weir demo --scenario evict` as a user runs it: its output and its errors.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["demo", "--scenario", "evict"])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn a_model_leaves_and_returns_and_no_byte_is_wrong() {
    let output = run(&[
        "--json",
        "--part",
        "h200",
        "--weights",
        "256MiB",
        "--cycles",
        "6",
        "--seed",
        "3",
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.is_empty(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["scenario"], "evict");
    assert_eq!(
        (&report["part"], &report["seed"]),
        (&"H200".into(), &3.into())
    );
    assert!(report["disturbed"].is_boolean());
    let model = &report["models"][0];
    assert_eq!(model["name"], "256MiB");
    let bytes = model["bytes"].as_u64().unwrap();
    assert!(bytes >= 256 << 20, "{model}");
    assert_eq!(model["evict_all_copied_bytes"], bytes);
    for nothing in [
        "evict_clean_copied_bytes",
        "evict_sealed_first_copied_bytes",
        "fixed_bytes",
        "requests_failed",
    ] {
        assert_eq!(model[nothing], 0, "{nothing}: {model}");
    }
    let number = |key: &str| model[key].as_f64().unwrap();
    assert!(number("restore_ms") >= number("link_ms"), "{model}");
    assert!(number("evict_all_ms") >= number("link_ms"), "{model}");
    assert!(number("handles") > 20.0 && number("residue_bytes") > 0.0);
    for share in ["first_kernel_share", "hidden_first_kernel_share"] {
        assert!((0.0..=1.0).contains(&number(share)), "{share}: {model}");
    }
    // A kernel whose arguments show no block runs after all bytes are back.
    assert!(number("hidden_first_kernel_share") > 0.999, "{model}");
    let cycles = &report["cycles"];
    assert_eq!(cycles["done"], 6);
    for nothing in ["wrong_bytes", "moved_addresses", "lost_requests"] {
        assert_eq!(cycles[nothing], 0, "{nothing}: {cycles}");
    }
    assert!(cycles["requests"].as_u64() >= Some(6));
}

#[test]
fn the_table_names_the_model_and_its_cycles() {
    let output = run(&["--weights", "64MiB", "--cycles", "2"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("64MiB"), "{text}");
    assert!(text.contains("2 random cycles (seed 1)"), "{text}");
    assert!(text.contains("refused evictions: "), "{text}");
}

#[test]
fn impossible_models_are_refused_with_exit_code_2() {
    for (arguments, expected) in [
        (&["--part", "B300"][..], "B300"),
        (
            &["--weights", "much"],
            "--weights=\"much\": allowed: a size such as",
        ),
        (&["--weights", "0"], "allowed on H200: above 0"),
        (&["--slow", "2"], "--slow is used with --part or --weights"),
        (&["--cycles", "100001"], "a whole number from 0 to 100000"),
        (&["--pods", "10:90"], "--pods belongs to --scenario shares"),
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}
