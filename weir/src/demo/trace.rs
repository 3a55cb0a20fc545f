//! Traces: Azure's LLM inference trace, and Weir's plain CSV.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use model_server::{Cost, Work};
use simulator::traces::{self, Source};

const AZURE_HEADING: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
const OWN_HEADING: &str = "arrival_s,service_ms,objective_ms,class";
/// Ten minutes of an Azure conversation service; see `weir/traces/README.md` for source and licence.
const BUNDLED: &str = include_str!("../../traces/azure-llm-2023-conversation-10min.csv");
/// Cost on the demo's model-server: 5 ms a request, 10 µs a prompt token, 150 µs a generated one. The proportions are those of a
/// small language model; the scale makes 25 s hold some 450 requests.
const AZURE_COST: Cost = Cost {
    fixed_ns: 5_000_000,
    per_input_ns: 10_000,
    per_output_ns: 150_000,
};
/// Cost of Weir's CSV: a unit of output is a microsecond of service.
const OWN_COST: Cost = Cost {
    fixed_ns: 0,
    per_input_ns: 0,
    per_output_ns: 1_000,
};
/// Longest service time, in ms: the model-server's own bound of ten minutes.
const SERVICE_MS_MAX: f64 = 600_000.0;
/// Largest file, as text, in bytes.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Classes of Azure's requests by generated tokens: up to this many `short`, up to the next bound `medium`, above it `long`.
const SHORT_TOKENS_MAX: u64 = 64;
const MEDIUM_TOKENS_MAX: u64 = 256;

/// One request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// Arrival, in s since the first request's.
    pub(crate) arrival_s: f64,
    /// Prompt and output size.
    pub(crate) work: Work,
    /// Objective in ms, if the trace states one.
    pub(crate) objective_ms: Option<f64>,
    /// Class under which the request is counted.
    pub(crate) class: String,
}

/// A trace and the cost of its requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trace {
    /// At least two entries, sorted by arrival.
    pub(crate) entries: Vec<Entry>,
    /// Cost of a request by its work.
    pub(crate) cost: Cost,
}

impl Trace {
    /// Returns the trace that is built into the program.
    pub(crate) fn bundled() -> anyhow::Result<Self> {
        Self::parse(BUNDLED).context("the bundled trace")
    }

    /// Reads a trace from a file, plain or gzip.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = traces::text(&Source::File(path.to_owned()), BYTES_MAX)?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Parses a trace; its format is recognized by the heading.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().enumerate();
        let heading = lines.next().map_or("", |(_, line)| line.trim());
        let (parse, cost): (fn(&str) -> anyhow::Result<Entry>, _) = match heading {
            AZURE_HEADING => (azure_entry, AZURE_COST),
            OWN_HEADING => (own_entry, OWN_COST),
            _ => bail!(
                "line 1: the heading is neither {AZURE_HEADING} nor {OWN_HEADING}: {:?}",
                heading.chars().take(80).collect::<String>()
            ),
        };
        let mut entries: Vec<Entry> = Vec::new();
        for (at, line) in lines {
            if line.trim().is_empty() {
                continue;
            }
            let entry = parse(line).with_context(|| format!("line {}", at + 1))?;
            if let Some(last) = entries.last() {
                ensure!(
                    entry.arrival_s >= last.arrival_s,
                    "line {}: it arrives before the line above it",
                    at + 1
                );
            }
            entries.push(entry);
        }
        ensure!(entries.len() >= 2, "a trace needs at least two requests");
        let first = entries[0].arrival_s;
        for entry in &mut entries {
            entry.arrival_s -= first;
        }
        Ok(Self { entries, cost })
    }
}

fn fields<const N: usize>(line: &str) -> anyhow::Result<[&str; N]> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let count = fields.len();
    fields
        .try_into()
        .map_err(|_| anyhow::anyhow!("{N} fields are needed, not {count}"))
}

fn number(name: &str, text: &str, min: f64) -> anyhow::Result<f64> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|n| n.is_finite() && *n >= min && *n <= 1e9)
        .with_context(|| format!("{name} is {text:?}: a number from {min} to 1e9 is needed"))
}

fn azure_entry(line: &str) -> anyhow::Result<Entry> {
    let [time, input, output] = fields(line)?;
    let tokens = |name: &str, text: &str| {
        text.parse::<u64>()
            .ok()
            .filter(|&n| n <= 10_000_000)
            .with_context(|| format!("{name} is {text:?}: a whole number up to 10000000 is needed"))
    };
    let output = tokens("GeneratedTokens", output)?;
    let class = if output <= SHORT_TOKENS_MAX {
        "short"
    } else if output <= MEDIUM_TOKENS_MAX {
        "medium"
    } else {
        "long"
    };
    Ok(Entry {
        arrival_s: timestamp(time).with_context(|| {
            format!("TIMESTAMP is {time:?}: YYYY-MM-DD HH:MM:SS.fffffff is needed")
        })?,
        work: Work {
            input: tokens("ContextTokens", input)?,
            output,
        },
        objective_ms: None,
        class: class.to_owned(),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounded to 0 … 1e9 ms before"
)]
fn own_entry(line: &str) -> anyhow::Result<Entry> {
    let [arrival, service, objective, class] = fields(line)?;
    ensure!(
        !class.is_empty() && class.len() <= 64,
        "class has 1 to 64 characters"
    );
    let service_ms = number("service_ms", service, 0.001)?;
    ensure!(
        service_ms <= SERVICE_MS_MAX,
        "service_ms is {service_ms}: at most {SERVICE_MS_MAX} is possible"
    );
    let objective_ms = match objective {
        "" => None,
        text => Some(number("objective_ms", text, 1.0)?),
    };
    Ok(Entry {
        arrival_s: number("arrival_s", arrival, 0.0)?,
        work: Work {
            input: 0,
            output: (service_ms * 1e3).round() as u64,
        },
        objective_ms,
        class: class.to_owned(),
    })
}

/// Parses a timestamp to seconds since an arbitrary epoch; only differences are meaningful.
fn timestamp(text: &str) -> Option<f64> {
    let (date, time) = text.split_once(' ')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let is_date =
        (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if date.next().is_some() || !is_date {
        return None;
    }
    let mut time = time.split(':');
    let (hour, minute) = (
        time.next()?.parse::<u32>().ok()?,
        time.next()?.parse::<u32>().ok()?,
    );
    let second: f64 = time.next()?.parse().ok()?;
    if time.next().is_some() || hour > 23 || minute > 59 || !(0.0..61.0).contains(&second) {
        return None;
    }
    // Days of the proleptic Gregorian calendar, with years that begin in March.
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day;
    let whole = days * 86_400 + i64::from(hour * 3_600 + minute * 60);
    // Seconds since the year 2000 keep a tenth of a microsecond in a double.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    Some((whole - 730_425 * 86_400) as f64 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrupted_traces_fail_without_a_panic() {
        let seeds = ::tests::mutation::seeds("trace");
        ::tests::mutation::run(&seeds, |text| match Trace::parse(text) {
            Ok(trace) => {
                assert!(trace.entries.len() >= 2);
                let arrivals = trace.entries.iter().map(|entry| entry.arrival_s);
                assert!(arrivals.is_sorted(), "in order of arrival");
            }
            Err(error) => assert!(!format!("{error:#}").is_empty()),
        });
    }

    fn error(text: &str) -> String {
        format!("{:#}", Trace::parse(text).unwrap_err())
    }

    #[test]
    fn the_bundled_trace_is_ten_minutes_of_azures_requests() {
        let trace = Trace::bundled().unwrap();
        assert_eq!(trace.entries.len(), 2_867);
        let span = trace.entries.last().unwrap().arrival_s;
        assert!((599.0..600.0).contains(&span), "{span}");
        assert_eq!(
            trace.entries[0].work,
            Work {
                input: 374,
                output: 44
            }
        );
        assert!((trace.entries[1].arrival_s - 4.314_579).abs() < 1e-3);
    }

    #[test]
    fn reads_weirs_own_csv() {
        let text = "arrival_s,service_ms,objective_ms,class\n0.5,20,80,chat\n1.5,2.5,,batch\n";
        let trace = Trace::parse(text).unwrap();
        assert_eq!(trace.entries[0].objective_ms, Some(80.0));
        assert_eq!(trace.entries[1].objective_ms, None);
        assert!((trace.entries[1].arrival_s - 1.0).abs() < 1e-9);
        let service = trace.cost.service_time(trace.entries[1].work);
        assert_eq!(service.as_micros(), 2_500);
    }

    #[test]
    fn errors_name_the_line_and_the_expected_format() {
        assert!(error("").contains("line 1: the heading is neither"));
        let own = |line: &str| error(&format!("{OWN_HEADING}\n0,1,4,a\n{line}\n"));
        assert!(own("1,2,3").contains("line 3: 4 fields are needed, not 3"));
        assert!(own("1,x,3,a").contains("line 3: service_ms is \"x\""));
        assert!(own("-1,1,3,a").contains("arrival_s"));
        assert!(own("1,nan,3,a").contains("service_ms"));
        assert!(own("1,1,3,").contains("class"));
        assert!(
            error(&format!("{OWN_HEADING}\n5,1,4,a\n4,1,4,a\n"))
                .contains("line 3: it arrives before")
        );
        assert!(error(&format!("{OWN_HEADING}\n5,1,4,a\n")).contains("at least two requests"));
        let azure = |line: &str| error(&format!("{AZURE_HEADING}\n{line}\n"));
        assert!(azure("yesterday,1,2").contains("line 2: TIMESTAMP is \"yesterday\""));
        assert!(azure("99999999999999999-11-16 18:15:46,1,2").contains("line 2: TIMESTAMP is"));
        assert!(azure("2023-11-16 18:15:46.6,1,-2").contains("GeneratedTokens is \"-2\""));
    }

    #[test]
    fn days_follow_one_another_over_months_and_leap_years() {
        let day = |text: &str| timestamp(&format!("{text} 00:00:00")).unwrap() / 86_400.0;
        for (a, b) in [
            ("2023-12-31", "2024-01-01"),
            ("2024-02-28", "2024-02-29"),
            ("2024-02-29", "2024-03-01"),
        ] {
            assert!((day(b) - day(a) - 1.0).abs() < 1e-9, "{a} {b}");
        }
    }
}
