//! Kernels of other programs: their time is modelled and their result is not computed, which is reported.

use std::fs::File;
use std::io::Write as _;

use softgpu_harness::programs::built;
use softgpu_harness::soft_gpu_dir::{SoftGpuDir, text};

const SCALE: &str = "softgpu: kernel scale: time modelled, result not computed";
const TOUCH: &str = "softgpu: kernel touch: time modelled, result not computed";

fn runs(softgpu: &SoftGpuDir, arguments: &[&str]) {
    let output = softgpu
        .command(built("foreign"))
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(output.stdout, b"ok\n");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(printed.lines().collect::<Vec<_>>(), [SCALE, TOUCH]);
}

#[test]
fn a_foreign_kernel_takes_time_and_changes_nothing() {
    let softgpu = SoftGpuDir::h100();
    // Keeps the server, which counts.
    let _client = softgpu.ready();
    for programs in 1..=2 {
        runs(&softgpu, &[]);
        let modelled = &softgpu.observer().statistics()["modelled"];
        assert_eq!(
            modelled,
            &serde_json::json!({"scale": programs, "touch": programs})
        );
    }
    let status = softgpu.weir("status", &[]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("time modelled"));
    assert_eq!(
        line,
        Some("time modelled, result not computed: scale, touch")
    );
}

#[test]
fn the_configuration_gives_foreign_kernels_durations_and_effects() {
    let softgpu = SoftGpuDir::h100();
    let config = softgpu.folder().join("softgpu.toml");
    let mut file = File::options().append(true).open(config).unwrap();
    let rule = "\n[[kernel]]\nname = \"t*ch\"\nduration-us = 70\neffects = \"touch\"\n";
    file.write_all(rule.as_bytes()).unwrap();
    drop(file);
    runs(&softgpu, &["touch"]);
}
