//! Command line of the program.

use std::ffi::OsString;

/// Role of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Starts the daemon and exits once it listens.
    Background,
    /// The daemon started by [`Mode::Background`].
    Detached,
    /// The daemon, with its log on standard output as well.
    Foreground,
    /// The front end, which sends commands to the daemon.
    Front,
    /// Prints the usage and exits.
    Help,
    /// Prints the version and exits.
    Version,
}

/// Options of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    /// Whether one server serves the clients of all users.
    pub(crate) is_multiuser: bool,
}

/// An invalid command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArgumentError {
    #[error("Invalid option: {0}\n{USAGE}")]
    Unknown(String),
    #[error("Static partitioning ({0}) is not supported by this device")]
    StaticPartitioning(String),
}

/// Option with which [`Mode::Background`] starts the daemon.
pub(crate) const DETACHED: &str = "--detached";
/// Option for one server that serves all users.
pub(crate) const MULTIUSER: &str = "-multiuser-server";

/// Text printed for `--help` and for invalid options.
pub(crate) const USAGE: &str = "\
Usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]
  -d                 start the MPS control daemon in the background
  -f                 start the MPS control daemon in the foreground
  -multiuser-server  with -d or -f: one server serves clients of all users
  -v, --version      print the version
  -h, --help         print this
Without options, commands are read from standard input; \"help\" lists them.
";

/// Parses the arguments, without the program's name.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Options, ArgumentError> {
    let mut options = Options {
        mode: Mode::Front,
        is_multiuser: false,
    };
    for argument in arguments {
        let argument = argument.to_string_lossy();
        match &*argument {
            "-d" if options.mode == Mode::Front => options.mode = Mode::Background,
            "-f" if options.mode == Mode::Front => options.mode = Mode::Foreground,
            DETACHED if options.mode == Mode::Background => options.mode = Mode::Detached,
            MULTIUSER | "--multiuser-server" => options.is_multiuser = true,
            "-v" | "-V" | "-P" | "--version" => options.mode = Mode::Version,
            "-h" | "--help" => options.mode = Mode::Help,
            "-S" | "--static-partitioning" => {
                return Err(ArgumentError::StaticPartitioning(argument.into_owned()));
            }
            _ => return Err(ArgumentError::Unknown(argument.into_owned())),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Options, ArgumentError> {
        parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn known_options_are_accepted_and_others_refused() {
        let mode = |arguments: &[&str]| parsed(arguments).unwrap().mode;
        assert_eq!(mode(&[]), Mode::Front);
        assert_eq!(mode(&["-d"]), Mode::Background);
        assert_eq!(mode(&["-d", DETACHED]), Mode::Detached);
        assert_eq!(mode(&["-f"]), Mode::Foreground);
        assert_eq!(mode(&["--version"]), Mode::Version);
        assert!(parsed(&["-d", MULTIUSER]).unwrap().is_multiuser);
        for wrong in [&["-x"][..], &["-d", "-f"], &[DETACHED], &["-f", DETACHED]] {
            assert!(matches!(parsed(wrong), Err(ArgumentError::Unknown(_))));
        }
        let error = parsed(&["-d", "-S"]).unwrap_err().to_string();
        assert!(error.contains("not supported"), "{error}");
    }
}
