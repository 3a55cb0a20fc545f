//! `weir softgpu ledger`: the use of SMs, links and memory over time, as a table, a drawing, or data.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use softgpu::ledger::{Ledger, Selection};
use softgpu::names::Names;
use softgpu::observer::Observer;
use softgpu::summary::{Summary, share, sm_seconds};
use softgpu::svg::{self, Heading, bytes_text, rate_text};
use softgpu::text;
use softgpu_wire::config::Config;
use softgpu_wire::ledger::LineKind;

use super::{SoftGpuDir, Usage, configuration, new_table, print};

/// Width of a terminal of unknown width, in columns.
const WIDTH: usize = 100;

/// Arguments of `weir softgpu ledger`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --csv, --json and --svg a table and a drawing for terminals. Times are those of the software GPU, in ms since the
ledger's first line; amounts are as they are there, smaller than life by the scale.")]
pub(super) struct Arguments {
    /// Start of the shown time.
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    from: Option<u64>,
    /// End of the shown time.
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    to: Option<u64>,
    /// Only processes on this GPU or slice, by its number, as `weir softgpu status` lists them.
    #[arg(long, value_name = "N")]
    unit: Option<u32>,
    /// Only the process with this number in the system.
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// All lines as CSV.
    #[arg(long, conflicts_with_all = ["json", "svg"])]
    csv: bool,
    /// The table as one JSON object.
    #[arg(long, conflicts_with = "svg")]
    json: bool,
    /// A drawing as SVG into this file; `-` is stdout.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    dir: SoftGpuDir,
}

/// Parses milliseconds with up to six decimals to nanoseconds.
fn milliseconds(text: &str) -> Result<u64, String> {
    let why = || "a number of ms is needed, as 12 or 12.5".to_owned();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 6 {
        return Err(why());
    }
    let whole: u64 = whole.parse().map_err(|_| why())?;
    let fraction: u64 = format!("{fraction:0<6}").parse().map_err(|_| why())?;
    let ns = whole
        .checked_mul(1_000_000)
        .and_then(|ns| ns.checked_add(fraction));
    ns.ok_or_else(why)
}

/// Formats nanoseconds as milliseconds without rounding.
fn exact_ms(ns: u64) -> String {
    format!("{}.{:06}", ns / 1_000_000, ns % 1_000_000)
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = arguments.dir.existing()?;
    if let (Some(from), Some(to)) = (arguments.from, arguments.to)
        && from >= to
    {
        let (from, to) = (ms(from), ms(to));
        return Err(Usage(format!("--from {from}: allowed: less than --to, {to}")).into());
    }
    let observer = Observer::open(&folder)?;
    let config = configuration(&folder, observer.as_ref())?;
    let names = Names::new(&folder, &config)?;
    if let Some(unit) = arguments.unit
        && unit as usize >= names.units.len()
    {
        let last = names.units.len().saturating_sub(1);
        return Err(Usage(format!("--unit {unit}: allowed: 0 to {last}")).into());
    }
    if let Some(observer) = &observer {
        observer.write_ledger()?;
    }
    let select = Selection {
        from: arguments.from,
        to: arguments.to,
        unit: arguments.unit,
        pid: arguments.process,
    };
    let ledger = Ledger::read(&folder, &select)?;
    if arguments.csv {
        print(csv(&ledger, &names).as_bytes())?;
    } else if arguments.json {
        let mut line = json(&folder, &config, &ledger, &names).to_string();
        line.push('\n');
        print(line.as_bytes())?;
    } else if let Some(file) = &arguments.svg {
        let heading = Heading {
            title: "Use of the software GPU".to_owned(),
            subtitle: about(&folder, &config),
        };
        let drawing = svg::draw(&ledger, &names, &heading);
        if file.as_os_str() == "-" {
            print(drawing.as_bytes())?;
        } else {
            std::fs::write(file, drawing).with_context(|| file.display().to_string())?;
        }
    } else {
        print(table(&folder, &config, &ledger, &names).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn about(folder: &Path, config: &Config) -> String {
    let (time, bytes) = (config.time, config.bytes);
    format!("{}: time × {time}, bytes ÷ {bytes}", folder.display())
}

fn csv(ledger: &Ledger, names: &Names) -> String {
    let mut text = String::from("what,number,name,unit,process,amount,from_ms,to_ms,command\n");
    for entry in &ledger.entries {
        let (what, number, name) = match entry.kind {
            LineKind::Sms(unit) => ("sm_thousandths", unit, names.unit(unit)),
            LineKind::Memory(unit) => ("memory_bytes", unit, names.unit(unit)),
            LineKind::Link(link) => ("link_bytes_per_second", link, names.link(link)),
            LineKind::Process(_) => continue,
        };
        let process = ledger.processes[entry.process];
        let command = entry.command.map(|command| command.to_string());
        // Writing to a string cannot fail.
        let _written = writeln!(
            text,
            "{what},{number},{name},{},{},{},{},{},{}",
            process.unit,
            process.pid,
            entry.amount,
            exact_ms(entry.from),
            exact_ms(entry.to),
            command.unwrap_or_default(),
        );
    }
    text
}

fn json(folder: &Path, config: &Config, ledger: &Ledger, names: &Names) -> serde_json::Value {
    let summary = Summary::new(ledger, names);
    let processes: Vec<_> = summary
        .processes
        .iter()
        .map(|process| {
            json!({
                "process": process.pid,
                "unit": process.unit,
                "unit_name": names.unit(process.unit),
                "sm_seconds": sm_seconds(process.millisms_ns),
                "busy_ms": ms(process.busy_ns),
                "busy_share": share(process.busy_ns, summary.span_ns),
                "shared_ms": ms(process.shared_ns),
                "link_bytes": process.link_bytes,
                "memory_traffic_bytes": process.memory_traffic,
                "memory_peak_bytes": process.memory_peak,
            })
        })
        .collect();
    let units: Vec<_> = summary
        .units
        .iter()
        .map(|unit| {
            json!({
                "unit": unit.unit,
                "name": names.unit(unit.unit),
                "sm_seconds": sm_seconds(unit.millisms_ns),
                "busy_ms": ms(unit.busy_ns),
                "busy_share": share(unit.busy_ns, summary.span_ns),
                "overlap_ms": ms(unit.overlap_ns),
                "sms_peak": unit.millisms_peak as f64 / 1e3,
                "memory_peak_bytes": unit.memory_peak,
            })
        })
        .collect();
    let links: Vec<_> = summary
        .links
        .iter()
        .map(|link| {
            json!({
                "link": link.link,
                "name": names.link(link.link),
                "bytes": link.bytes,
                "busy_ms": ms(link.busy_ns),
            })
        })
        .collect();
    json!({
        "folder": folder.display().to_string(),
        "scale": {"bytes": config.bytes, "time": config.time},
        "from_ms": ms(ledger.from),
        "to_ms": ms(ledger.to),
        "processes": processes,
        "units": units,
        "links": links,
    })
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", share(part, whole) * 100.0)
}

fn table(folder: &Path, config: &Config, ledger: &Ledger, names: &Names) -> String {
    let summary = Summary::new(ledger, names);
    let (from, to) = (ms(ledger.from), ms(ledger.to));
    let mut text = format!("{}; {from:.3} to {to:.3} ms\n", about(folder, config));
    if summary.processes.is_empty() {
        text.push_str("Nothing was held in this time.\n");
        return text;
    }
    let heading = [
        "process",
        "on",
        "SM·s",
        "busy",
        "with others",
        "links",
        "memory traffic",
        "memory peak",
    ];
    let mut table = new_table(&heading, 2);
    for process in &summary.processes {
        table.add_row([
            process.pid.to_string(),
            names.unit(process.unit),
            format!("{:.6}", sm_seconds(process.millisms_ns)),
            percent(process.busy_ns, summary.span_ns),
            percent(process.shared_ns, summary.span_ns),
            rate_text(process.link_bytes),
            rate_text(process.memory_traffic),
            bytes_text(process.memory_peak),
        ]);
    }
    text.push_str(&format!("{table}\n"));
    let heading = [
        "unit",
        "name",
        "SM·s",
        "busy",
        "shared",
        "SMs peak",
        "memory peak",
    ];
    let mut table = new_table(&heading, 2);
    for unit in &summary.units {
        table.add_row([
            unit.unit.to_string(),
            names.unit(unit.unit),
            format!("{:.6}", sm_seconds(unit.millisms_ns)),
            percent(unit.busy_ns, summary.span_ns),
            percent(unit.overlap_ns, summary.span_ns),
            format!("{:.1}", unit.millisms_peak as f64 / 1e3),
            bytes_text(unit.memory_peak),
        ]);
    }
    text.push_str(&format!("{table}\n"));
    let drawing = text::draw(ledger, names, width());
    if !drawing.is_empty() {
        text.push('\n');
        text.push_str(&drawing);
    }
    text
}

/// Returns the terminal's width in columns, else that of the shell's variable `COLUMNS`, else [`WIDTH`].
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let known = Some(columns)
        .filter(|columns| *columns > 0)
        .or_else(variable);
    known.unwrap_or(WIDTH).clamp(40, 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_to_the_nanosecond() {
        for (text, ns) in [
            ("0", 0),
            ("12", 12_000_000),
            ("12.5", 12_500_000),
            ("0.000001", 1),
        ] {
            assert_eq!(milliseconds(text), Ok(ns), "{text}");
        }
        for text in ["", ".5", "5.", "-1", "1e3", "0.0000001", "99999999999999"] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
        assert_eq!(exact_ms(12_500_001), "12.500001");
    }
}
