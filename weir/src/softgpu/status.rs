//! `weir softgpu status`: the server's state and the processes on its GPUs.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use comfy_table::Table;
use serde_json::{Value, json};
use softgpu::names::{Names, UnitName};
use softgpu::observer::{Memory, Observer};
use softgpu::summary::sm_seconds;
use softgpu::svg::bytes_text;
use softgpu_wire::message::ProcessLine;

use super::{SoftGpuDir, new_table, no_server, print, report};

/// Arguments of `weir softgpu status`.
#[derive(Debug, Args)]
#[command(after_help = "Exit code 1 if no server runs.")]
pub(super) struct Arguments {
    /// One JSON object instead of tables.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dir: SoftGpuDir,
}

/// Function through which the CUDA runtime requests the private tables that it requires.
const RUNTIMES: &str = "cuGetExportTable";

/// Current state of a GPU or slice.
struct Unit<'a> {
    name: &'a UnitName,
    /// Memory of the unit; `None` if its GPU is lost.
    memory: Option<Memory>,
    processes: Vec<ProcessLine>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = arguments.dir.existing()?;
    let Some(observer) = Observer::open(&folder)? else {
        if arguments.json {
            let none = json!({"folder": folder.display().to_string(), "running": false});
            print(format!("{none}\n").as_bytes())?;
        } else {
            report(&no_server(&folder));
        }
        return Ok(ExitCode::FAILURE);
    };
    let names = Names::new(&folder, &observer.config)?;
    let statistics = observer.statistics()?;
    let mut units = Vec::new();
    for name in &names.units {
        units.push(Unit {
            name,
            memory: observer.memory(name.number)?,
            processes: observer.processes(name.number)?.unwrap_or_default(),
        });
    }
    let text = if arguments.json {
        format!("{}\n", json(&folder, &observer, &statistics, &units))
    } else {
        text(&folder, &observer, &statistics, &units)
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn json(folder: &Path, observer: &Observer, statistics: &Value, units: &[Unit<'_>]) -> Value {
    let process = |line: &ProcessLine| {
        json!({
            "process": line.pid,
            "memory_bytes": line.memory,
            "contexts": line.contexts,
            "sms": line.sms,
            "mps": line.mps > 0,
            "active_thread_percentage": f64::from(line.percentage_hundredths) / 100.0,
            "sm_seconds": sm_seconds(line.millisms_ns.into()),
        })
    };
    let units: Vec<_> = units
        .iter()
        .map(|unit| {
            json!({
                "unit": unit.name.number,
                "gpu": unit.name.gpu,
                "name": unit.name.name,
                "product": unit.name.product,
                "uuid": unit.name.uuid,
                "sms": unit.name.sms,
                "is_lost": unit.memory.is_none(),
                "memory_bytes": unit.name.memory,
                "memory_free_bytes": unit.memory.map(|memory| memory.free),
                "processes": unit.processes.iter().map(process).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "folder": folder.display().to_string(),
        "running": true,
        "server": observer.pid,
        "statistics": statistics,
        "units": units,
    })
}

fn text(folder: &Path, observer: &Observer, statistics: &Value, units: &[Unit<'_>]) -> String {
    let number = |path: &str| {
        statistics
            .pointer(path)
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let us = |path: &str| number(path) as f64 / 1e3;
    let config = &observer.config;
    let mut text = format!(
        "{}: server {}, up {:.1} s; time × {}, bytes ÷ {}\n",
        folder.display(),
        observer.pid,
        number("/uptime_ns") as f64 / 1e9,
        config.time,
        config.bytes,
    );
    text.push_str(&format!(
        "{} programs, {} commands, {} faults\n",
        number("/clients"),
        number("/commands"),
        number("/faults"),
    ));
    text.push_str(&format!(
        "lag (published minus due) p50 {:.0} µs, p99 {:.0} µs, max {:.0} µs of {} waits; the server could have run and did not for \
         {:.1} ms\n",
        us("/lag/p50_ns"),
        us("/lag/p99_ns"),
        us("/lag/max_ns"),
        number("/lag/count"),
        us("/run_delay_ns") / 1e3,
    ));
    if statistics["ledger_is_whole"] == Value::Bool(false) {
        text.push_str("The ledger could not be written: it is not whole.\n");
    }
    let unsupported = statistics["unsupported"].as_object();
    for (name, times) in unsupported.into_iter().flatten() {
        text.push_str(&if name == RUNTIMES {
            format!(
                "softgpu: the CUDA runtime's private tables are not supported ({name}, called by {times} programs)\n"
            )
        } else {
            format!("not there and called: {name}, {times} times\n")
        });
    }
    text.push_str(&modelled(statistics));
    text.push_str(&format!("{}\n", units_table(units)));
    if units.iter().any(|unit| !unit.processes.is_empty()) {
        text.push_str(&format!("{}\n", processes_table(units)));
    }
    text
}

/// Returns a line with the kernels whose result is not computed; empty if none was launched.
fn modelled(statistics: &Value) -> String {
    const SHOWN: usize = 8;
    let kernels = statistics["modelled"].as_object();
    let names: Vec<_> = kernels.into_iter().flat_map(|all| all.keys()).collect();
    if names.is_empty() {
        return String::new();
    }
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| name.as_str()).collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "time modelled, result not computed: {}{more}\n",
        shown.join(", ")
    )
}

fn units_table(units: &[Unit<'_>]) -> Table {
    let heading = [
        "unit",
        "name",
        "product",
        "UUID",
        "SMs",
        "memory used",
        "of",
    ];
    let mut table = new_table(&heading, 4);
    for unit in units {
        let used = match unit.memory {
            Some(memory) => bytes_text(memory.total.saturating_sub(memory.free)),
            None => "lost".to_owned(),
        };
        table.add_row([
            unit.name.number.to_string(),
            unit.name.name.clone(),
            unit.name.product.to_owned(),
            unit.name.uuid.clone(),
            unit.name.sms.to_string(),
            used,
            bytes_text(unit.name.memory),
        ]);
    }
    table
}

fn processes_table(units: &[Unit<'_>]) -> Table {
    let heading = [
        "process",
        "on",
        "memory",
        "contexts",
        "SMs at most",
        "MPS",
        "SM·s",
    ];
    let mut table = new_table(&heading, 2);
    for unit in units {
        for line in &unit.processes {
            let mps = if line.mps > 0 { "yes" } else { "no" };
            table.add_row([
                line.pid.to_string(),
                unit.name.name.clone(),
                bytes_text(line.memory),
                line.contexts.to_string(),
                line.sms.to_string(),
                mps.to_owned(),
                format!("{:.6}", sm_seconds(line.millisms_ns.into())),
            ]);
        }
    }
    table
}
