//! The process's own log, in the format that Knative's collectors expect: one JSON object per line with zap's keys.
//!
//! `SERVING_LOGGING_CONFIG` is zap's configuration: level, encoding (`json` or `console`), output paths
//! (`stdout` or `stderr`), names of the keys, and formats of level and time. Omitted parts have Knative's defaults. If
//! the configuration cannot be parsed, all defaults apply and the first line of the log reports the error.

use std::fmt;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime as Timestamp};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::lines;

/// Identifier of the build in logs and metrics: the commit if it was known at build time, else the version.
pub const COMMIT: &str = match option_env!("WEIR_COMMIT") {
    Some(commit) => commit,
    None => env!("CARGO_PKG_VERSION"),
};

/// Identity of the process in its log lines.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// Value of the key `knative.dev/key`: `namespace/revision`.
    pub key: String,
    /// Name of the pod, the value of the key `knative.dev/pod`.
    pub pod: String,
    /// Name of the logger: that of the Knative program that this one replaces.
    pub logger: &'static str,
    /// Modules of libraries that are only logged at level `debug`, since the program reports their failures itself.
    pub silent: &'static [&'static str],
}

/// Level, format and destination of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    level: LevelFilter,
    console: bool,
    to_stdout: bool,
    keys: Keys,
    level_form: LevelForm,
    time_form: TimeForm,
    /// Error in the configuration, if it could not be parsed.
    problem: Option<String>,
}

/// Names of a line's keys; the value of an empty one is omitted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Keys {
    time: String,
    level: String,
    name: String,
    caller: String,
    message: String,
}

/// zap's level encoders; Knative's default is Stackdriver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LevelForm {
    Stackdriver,
    Capital,
    Lowercase,
}

/// zap's time encoders; Knative's default is RFC 3339 with nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimeForm {
    Rfc3339Nano,
    Rfc3339,
    Iso8601,
    Millis,
    Nanos,
    Seconds,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    level: Option<String>,
    encoding: Option<String>,
    output_paths: Option<Vec<String>>,
    encoder_config: Option<RawEncoder>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawEncoder {
    time_key: Option<String>,
    level_key: Option<String>,
    name_key: Option<String>,
    caller_key: Option<String>,
    message_key: Option<String>,
    level_encoder: Option<String>,
    time_encoder: Option<String>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: LevelFilter::INFO,
            console: false,
            to_stdout: false,
            keys: Keys {
                time: "timestamp".to_owned(),
                level: "severity".to_owned(),
                name: "logger".to_owned(),
                caller: "caller".to_owned(),
                message: "message".to_owned(),
            },
            level_form: LevelForm::Stackdriver,
            time_form: TimeForm::Rfc3339Nano,
            problem: None,
        }
    }
}

impl LogConfig {
    /// Parses `SERVING_LOGGING_CONFIG` and `SERVING_LOGGING_LEVEL`. The latter overrides the level if it is a valid one.
    #[must_use]
    pub fn parse(json: &str, level: &str) -> Self {
        let mut config = if json.is_empty() {
            Self::default()
        } else {
            match Self::from_json(json) {
                Ok(config) => config,
                Err(problem) => Self {
                    problem: Some(problem),
                    ..Self::default()
                },
            }
        };
        if let Some(level) = level_named(level) {
            config.level = level;
        }
        config
    }

    fn from_json(json: &str) -> Result<Self, String> {
        let raw: Option<Raw> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let raw = raw.unwrap_or_default();
        let mut config = Self::default();
        if let Some(level) = raw.level.filter(|level| !level.is_empty()) {
            config.level = level_named(&level).ok_or_else(|| {
                format!("level: {level:?}: allowed: debug, info, warn, error, dpanic, panic, fatal")
            })?;
        }
        match raw.encoding.as_deref() {
            None | Some("json") => {}
            Some("console") => config.console = true,
            Some(other) => return Err(format!("encoding: {other:?}: allowed: json, console")),
        }
        if let Some(paths) = raw.output_paths {
            for path in &paths {
                if path != "stdout" && path != "stderr" {
                    return Err(format!("outputPaths: {path:?}: allowed: stdout, stderr"));
                }
            }
            config.to_stdout = paths.first().is_some_and(|path| path == "stdout");
        }
        if let Some(encoder) = raw.encoder_config {
            config.set_encoder(encoder);
        }
        Ok(config)
    }

    fn set_encoder(&mut self, encoder: RawEncoder) {
        let keys = &mut self.keys;
        for (key, given) in [
            (&mut keys.time, encoder.time_key),
            (&mut keys.level, encoder.level_key),
            (&mut keys.name, encoder.name_key),
            (&mut keys.caller, encoder.caller_key),
            (&mut keys.message, encoder.message_key),
        ] {
            if let Some(given) = given {
                *key = given;
            }
        }
        // zap falls back to its own defaults for unknown encoders.
        if let Some(form) = encoder.level_encoder {
            self.level_form = match form.as_str() {
                "capital" | "capitalColor" => LevelForm::Capital,
                _ => LevelForm::Lowercase,
            };
        }
        if let Some(form) = encoder.time_encoder {
            self.time_form = match form.as_str() {
                "rfc3339nano" | "RFC3339Nano" => TimeForm::Rfc3339Nano,
                "rfc3339" | "RFC3339" => TimeForm::Rfc3339,
                "iso8601" | "ISO8601" => TimeForm::Iso8601,
                "millis" => TimeForm::Millis,
                "nanos" => TimeForm::Nanos,
                _ => TimeForm::Seconds,
            };
        }
    }

    /// Installs the log of this process as the global subscriber.
    ///
    /// # Panics
    /// Panics if a global subscriber is already installed.
    pub fn start(self, identity: Identity) {
        let problem = self.problem.clone();
        let level = self.level;
        let mut targets = Targets::new().with_default(level);
        if level < LevelFilter::DEBUG {
            let silent = identity.silent.iter();
            targets = targets.with_targets(silent.map(|module| (*module, LevelFilter::OFF)));
        }
        let log = ProcessLog {
            config: self,
            identity,
        };
        tracing_subscriber::registry()
            .with(log.with_filter(targets))
            .init();
        if let Some(error) = problem {
            tracing::warn!(
                error,
                "Failed to parse logging config - using default zap production config"
            );
        }
    }
}

fn level_named(name: &str) -> Option<LevelFilter> {
    Some(match name.to_ascii_lowercase().as_str() {
        "debug" => LevelFilter::DEBUG,
        "info" => LevelFilter::INFO,
        "warn" => LevelFilter::WARN,
        "error" | "dpanic" | "panic" | "fatal" => LevelFilter::ERROR,
        _ => return None,
    })
}

#[derive(Debug)]
struct ProcessLog {
    config: LogConfig,
    identity: Identity,
}

impl<S: Subscriber> Layer<S> for ProcessLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        #[expect(clippy::disallowed_methods, reason = "a wall-clock time for readers")]
        let mut line = self.line(event, SystemTime::now());
        line.push('\n');
        if self.config.to_stdout {
            lines::stdout().write(line);
        } else {
            // A failure to write the log cannot be reported anywhere.
            let _written = std::io::stderr().lock().write_all(line.as_bytes());
        }
    }
}

impl ProcessLog {
    fn line(&self, event: &Event<'_>, now: SystemTime) -> String {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let fallback = self.config.problem.is_some();
        let prefix = if fallback { "fallback-logger." } else { "" };
        let logger = format!("{prefix}{}", self.identity.logger);
        let head = [
            (&self.config.keys.level, self.level(*metadata.level())),
            (&self.config.keys.time, self.time(now)),
            (&self.config.keys.name, logger.into()),
            (&self.config.keys.caller, caller(metadata).into()),
            (&self.config.keys.message, fields.message.into()),
        ];
        let rest = [
            ("commit", COMMIT),
            ("knative.dev/key", &self.identity.key),
            ("knative.dev/pod", &self.identity.pod),
        ];
        let mut object = Map::new();
        if !self.config.console {
            for (key, value) in &head {
                if !key.is_empty() {
                    object.insert((*key).clone(), value.clone());
                }
            }
        }
        for (key, value) in rest {
            object.insert(key.to_owned(), value.into());
        }
        object.extend(fields.others);
        let object = Value::Object(object).to_string();
        if !self.config.console {
            return object;
        }
        let [level, time, name, caller, message] = head.map(|(_, value)| match value {
            Value::String(text) => text,
            other => other.to_string(),
        });
        format!("{time}\t{level}\t{name}\t{caller}\t{message}\t{object}")
    }

    fn level(&self, level: Level) -> Value {
        let name = match level {
            Level::ERROR => "ERROR",
            Level::WARN if self.config.level_form == LevelForm::Stackdriver => "WARNING",
            Level::WARN => "WARN",
            Level::INFO => "INFO",
            Level::DEBUG | Level::TRACE => "DEBUG",
        };
        if self.config.level_form == LevelForm::Lowercase {
            name.to_ascii_lowercase().into()
        } else {
            name.into()
        }
    }

    fn time(&self, now: SystemTime) -> Value {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        match self.config.time_form {
            TimeForm::Seconds => since.as_secs_f64().into(),
            TimeForm::Millis => (since.as_secs_f64() * 1e3).into(),
            TimeForm::Nanos => u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).into(),
            TimeForm::Rfc3339Nano => timestamp().into(),
            TimeForm::Iso8601 => shortened(timestamp(), ".000".len()).into(),
            TimeForm::Rfc3339 => shortened(timestamp(), 0).into(),
        }
    }
}

/// Returns the current time in RFC 3339 format, in UTC, with microseconds.
fn timestamp() -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _written = Timestamp.format_time(&mut Writer::new(&mut text));
    text
}

/// Truncates a timestamp to `kept` characters of its fraction, including the point.
fn shortened(mut timestamp: String, kept: usize) -> String {
    if let Some(point) = timestamp.find('.') {
        timestamp.truncate(point + kept);
        timestamp.push('Z');
    }
    timestamp
}

/// Returns the source location as `directory/file.rs:line`.
fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().unwrap_or_default();
    let short = file.rmatch_indices('/').nth(1);
    let file = short.map_or(file, |(at, _)| &file[at + 1..]);
    format!("{file}:{}", metadata.line().unwrap_or_default())
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        if field.name() == "message" {
            self.message = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
        } else {
            self.others.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `config-logging` as Knative ships it.
    const SHIPPED: &str = r#"{"level":"info","development":false,"outputPaths":["stdout"],
        "errorOutputPaths":["stderr"],"encoding":"json","encoderConfig":{"timeKey":"timestamp",
        "levelKey":"severity","nameKey":"logger","callerKey":"caller","messageKey":"message",
        "stacktraceKey":"stacktrace","lineEnding":"","levelEncoder":"","timeEncoder":"iso8601",
        "durationEncoder":"","callerEncoder":""}}"#;

    #[test]
    fn the_shipped_configuration_is_read() {
        let config = LogConfig::parse(SHIPPED, "");
        assert!(config.to_stdout && !config.console && config.problem.is_none());
        assert_eq!(config.level, LevelFilter::INFO);
        assert_eq!(config.level_form, LevelForm::Lowercase);
        assert_eq!(config.time_form, TimeForm::Iso8601);
    }

    #[test]
    fn a_valid_level_of_the_component_overrides_the_configuration() {
        assert_eq!(LogConfig::parse(SHIPPED, "debug").level, LevelFilter::DEBUG);
        assert_eq!(LogConfig::parse(SHIPPED, "loud").level, LevelFilter::INFO);
        assert_eq!(LogConfig::parse("{oops", "error").level, LevelFilter::ERROR);
    }

    #[test]
    fn an_invalid_configuration_is_reported_and_leaves_the_defaults() {
        for (json, reported) in [
            ("{oops", "line 1 column 2"),
            (r#"{"level":"loud"}"#, "level"),
            (r#"{"encoding":"xml"}"#, "encoding"),
            (r#"{"outputPaths":["/var/log/x"]}"#, "outputPaths"),
        ] {
            let config = LogConfig::parse(json, "");
            let problem = config.problem.as_ref().unwrap();
            assert!(problem.contains(reported), "{json}");
            assert_eq!(
                LogConfig {
                    problem: None,
                    ..config
                },
                LogConfig::default()
            );
        }
    }

    #[test]
    fn timestamps_are_truncated_to_the_format() {
        let time = "2026-11-21T14:18:15.728123Z".to_owned();
        assert_eq!(shortened(time.clone(), 4), "2026-11-21T14:18:15.728Z");
        assert_eq!(shortened(time, 0), "2026-11-21T14:18:15Z");
    }
}
