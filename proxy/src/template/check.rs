//! Static check that the fields and functions of a template exist, so that errors are found at start and not when a line
//! is written.

use super::{Command, Function, Name, Node, Operand, Pipeline};

/// Static type of a value, as far as it is known without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Type that is not known statically.
    Any,
    Nil,
    Bool,
    Integer,
    Float,
    Text,
    List,
    Root,
    Request,
    Response,
    Revision,
    Url,
    /// Headers or trailers, by name.
    Header,
    /// Values of a query or a form, by name.
    Values,
    /// TLS state of a connection, or nil.
    Tls,
    Cookies,
    Cookie,
    Body,
}

impl Kind {
    /// Returns the name of the type in error messages.
    const fn name(self) -> &'static str {
        match self {
            Self::Any => "this",
            Self::Nil => "nil",
            Self::Bool => "a boolean",
            Self::Integer => "a whole number",
            Self::Float => "a number",
            Self::Text => "a text",
            Self::List => "a list",
            Self::Root => "the record",
            Self::Request => ".Request",
            Self::Response => ".Response",
            Self::Revision => ".Revision",
            Self::Url => ".Request.URL",
            Self::Header => "a header",
            Self::Values => "a query or form",
            Self::Tls => ".Request.TLS",
            Self::Cookies => "a list of cookies",
            Self::Cookie => "a cookie",
            Self::Body => ".Request.Body",
        }
    }

    const fn is_map(self) -> bool {
        matches!(self, Self::Header | Self::Values)
    }

    /// Returns whether a value of this type may be used where `wanted` is required.
    fn fits(self, wanted: Self) -> bool {
        self == wanted || self == Self::Any
    }
}

/// A field, or a method with the types of its arguments.
pub(super) struct Member {
    pub of: Kind,
    pub name: &'static str,
    pub arguments: &'static [Kind],
    pub kind: Kind,
}

const fn field(of: Kind, name: &'static str, kind: Kind) -> Member {
    method(of, name, &[], kind)
}

const fn method(of: Kind, name: &'static str, arguments: &'static [Kind], kind: Kind) -> Member {
    Member {
        of,
        name,
        arguments,
        kind,
    }
}

/// All supported fields and methods, with Go's names.
pub(super) const MEMBERS: &[Member] = {
    use Kind::{
        Body, Bool, Cookie, Cookies, Float, Header, Integer, List, Nil, Request, Response,
        Revision, Root, Text, Tls, Url, Values,
    };
    &[
        field(Root, "Request", Request),
        field(Root, "Response", Response),
        field(Root, "Revision", Revision),
        field(Root, "TraceID", Text),
        field(Response, "Code", Integer),
        field(Response, "Size", Integer),
        field(Response, "Latency", Float),
        field(Revision, "Name", Text),
        field(Revision, "Namespace", Text),
        field(Revision, "Service", Text),
        field(Revision, "Configuration", Text),
        field(Revision, "PodName", Text),
        field(Revision, "PodIP", Text),
        field(Request, "Body", Body),
        field(Request, "Close", Bool),
        field(Request, "ContentLength", Integer),
        method(Request, "Cookie", &[Text], Cookie),
        field(Request, "Cookies", Cookies),
        method(Request, "CookiesNamed", &[Text], Cookies),
        field(Request, "Form", Values),
        method(Request, "FormValue", &[Text], Text),
        field(Request, "Header", Header),
        field(Request, "Host", Text),
        field(Request, "Method", Text),
        field(Request, "MultipartForm", Nil),
        method(Request, "PathValue", &[Text], Text),
        field(Request, "Pattern", Text),
        field(Request, "PostForm", Values),
        method(Request, "PostFormValue", &[Text], Text),
        field(Request, "Proto", Text),
        method(Request, "ProtoAtLeast", &[Integer, Integer], Bool),
        field(Request, "ProtoMajor", Integer),
        field(Request, "ProtoMinor", Integer),
        field(Request, "Referer", Text),
        field(Request, "RemoteAddr", Text),
        field(Request, "RequestURI", Text),
        field(Request, "TLS", Tls),
        field(Request, "Trailer", Header),
        field(Request, "TransferEncoding", List),
        field(Request, "URL", Url),
        field(Request, "UserAgent", Text),
        field(Url, "EscapedPath", Text),
        field(Url, "ForceQuery", Bool),
        field(Url, "Fragment", Text),
        field(Url, "Host", Text),
        field(Url, "Hostname", Text),
        field(Url, "IsAbs", Bool),
        field(Url, "Opaque", Text),
        field(Url, "Path", Text),
        field(Url, "Port", Text),
        field(Url, "Query", Values),
        field(Url, "RawPath", Text),
        field(Url, "RawQuery", Text),
        field(Url, "RequestURI", Text),
        field(Url, "Scheme", Text),
        field(Url, "String", Text),
        method(Header, "Get", &[Text], Text),
        method(Header, "Values", &[Text], List),
        field(Values, "Encode", Text),
        method(Values, "Get", &[Text], Text),
        method(Values, "Has", &[Text], Bool),
        field(Tls, "CipherSuite", Integer),
        field(Tls, "CurveID", Text),
        field(Tls, "DidResume", Bool),
        field(Tls, "ECHAccepted", Bool),
        field(Tls, "HandshakeComplete", Bool),
        field(Tls, "HelloRetryRequest", Bool),
        field(Tls, "NegotiatedProtocol", Text),
        field(Tls, "NegotiatedProtocolIsMutual", Bool),
        field(Tls, "ServerName", Text),
        field(Tls, "Version", Integer),
        field(Cookie, "Name", Text),
        field(Cookie, "Quoted", Bool),
        field(Cookie, "String", Text),
        field(Cookie, "Value", Text),
    ]
};

/// An error that occurs for every request.
#[derive(Debug)]
pub(super) struct CheckError {
    /// Offset of the error in the template, in bytes.
    pub offset: usize,
    /// Description of the error, with the allowed forms.
    pub why: String,
}

fn wrong<T>(offset: usize, why: impl Into<String>) -> Result<T, CheckError> {
    Err(CheckError {
        offset,
        why: why.into(),
    })
}

/// Checks all names in a template's nodes.
pub(super) fn nodes(nodes: &[Node]) -> Result<(), CheckError> {
    for node in nodes {
        match node {
            Node::Text(_) => {}
            Node::Output(shown) => {
                let kind = pipeline(shown)?;
                let offset = shown.0.first().map_or(0, |command| command.offset);
                writable(kind, offset)?;
            }
            Node::If(branches, otherwise) => {
                for (condition, guarded) in branches {
                    pipeline(condition)?;
                    self::nodes(guarded)?;
                }
                self::nodes(otherwise)?;
            }
        }
    }
    Ok(())
}

fn writable(kind: Kind, offset: usize) -> Result<(), CheckError> {
    if matches!(kind, Kind::Root | Kind::Request) {
        return wrong(
            offset,
            format!("{} cannot be printed; use one of its fields", kind.name()),
        );
    }
    Ok(())
}

fn pipeline(pipeline: &Pipeline) -> Result<Kind, CheckError> {
    let mut piped = None;
    for command in &pipeline.0 {
        piped = Some(self::command(command, piped)?);
    }
    Ok(piped.unwrap_or(Kind::Nil))
}

fn command(command: &Command, piped: Option<Kind>) -> Result<Kind, CheckError> {
    let mut arguments = Vec::with_capacity(command.arguments.len() + 1);
    for argument in &command.arguments {
        arguments.push(operand(argument, command.offset)?);
    }
    arguments.extend(piped);
    match &command.head {
        Operand::Nil => wrong(command.offset, "nil is not a command"),
        Operand::Function(own) => function(*own, &arguments, command.offset),
        Operand::Fields(names) => members(Kind::Root, names, &arguments),
        Operand::Group(inner, names) => members(pipeline(inner)?, names, &arguments),
        literal => operand(literal, command.offset),
    }
}

fn operand(operand: &Operand, offset: usize) -> Result<Kind, CheckError> {
    Ok(match operand {
        Operand::Text(_) => Kind::Text,
        Operand::Integer(_) => Kind::Integer,
        Operand::Float(_) => Kind::Float,
        Operand::Bool(_) => Kind::Bool,
        Operand::Nil => Kind::Nil,
        Operand::Fields(names) => members(Kind::Root, names, &[])?,
        Operand::Group(inner, names) => members(pipeline(inner)?, names, &[])?,
        Operand::Function(own) => function(*own, &[], offset)?,
    })
}

/// Returns the type at the end of a field path, of which the last member takes the arguments.
fn members(of: Kind, names: &[Name], arguments: &[Kind]) -> Result<Kind, CheckError> {
    let mut kind = of;
    for (at, name) in names.iter().enumerate() {
        let is_last = at + 1 == names.len();
        kind = member(kind, name, if is_last { arguments } else { &[] })?;
    }
    Ok(kind)
}

fn member(of: Kind, name: &Name, arguments: &[Kind]) -> Result<Kind, CheckError> {
    if of == Kind::Any {
        return Ok(Kind::Any);
    }
    let all = MEMBERS.iter().filter(|member| member.of == of);
    let Some(found) = all.clone().find(|member| member.name == name.text) else {
        // A map has every key.
        if of.is_map() && arguments.is_empty() {
            return Ok(Kind::List);
        }
        let names: Vec<_> = all.map(|member| member.name).collect();
        let allowed = if names.is_empty() {
            "it has none".to_owned()
        } else {
            format!("allowed: {}", names.join(" "))
        };
        return wrong(
            name.offset,
            format!("{}: {} has no such field; {allowed}", name.text, of.name()),
        );
    };
    let fits = found.arguments.len() == arguments.len()
        && arguments
            .iter()
            .zip(found.arguments)
            .all(|(given, wanted)| given.fits(*wanted));
    if !fits {
        let wanted: Vec<_> = found.arguments.iter().map(|kind| kind.name()).collect();
        let wanted = match &wanted[..] {
            [] => "no arguments".to_owned(),
            wanted => format!("as arguments {}", wanted.join(" and ")),
        };
        return wrong(name.offset, format!("{} takes {wanted}", name.text));
    }
    Ok(found.kind)
}

fn function(function: Function, arguments: &[Kind], offset: usize) -> Result<Kind, CheckError> {
    let count = match function {
        Function::Len | Function::Not => 1..=1,
        Function::And | Function::Or | Function::Index => 1..=usize::MAX,
        Function::Eq => 2..=usize::MAX,
        Function::Ge | Function::Gt | Function::Le | Function::Lt | Function::Ne => 2..=2,
        _ => 0..=usize::MAX,
    };
    if !count.contains(&arguments.len()) {
        let count = match (*count.start(), *count.end()) {
            (1, 1) => "one argument".to_owned(),
            (least, most) if least == most => format!("{least} arguments"),
            (least, _) => format!("at least {least}"),
        };
        return wrong(offset, format!("{} takes {count}", function.name()));
    }
    Ok(match (function, arguments) {
        (
            Function::Html
            | Function::Js
            | Function::UrlQuery
            | Function::Print
            | Function::Println,
            written,
        ) => {
            for kind in written {
                writable(*kind, offset)?;
            }
            Kind::Text
        }
        (Function::And | Function::Or, [first, rest @ ..]) => {
            if rest.iter().all(|kind| kind == first) {
                *first
            } else {
                Kind::Any
            }
        }
        (Function::Index, [of]) => *of,
        (Function::Index, [of, _key]) if of.is_map() => Kind::List,
        (Function::Index, [Kind::List, _key]) => Kind::Text,
        (Function::Index, [Kind::Cookies, _key]) => Kind::Cookie,
        (Function::Index, _) => Kind::Any,
        (Function::Len, _) => Kind::Integer,
        _ => Kind::Bool,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Template;

    #[test]
    fn unknown_names_are_refused_with_their_position_and_the_known_names() {
        for (text, why) in [
            (
                "a\n{{.Request.Nope}}",
                "line 2, column 12: Nope: .Request has no such field; allowed: Body Close ",
            ),
            (
                "{{.Nope}}",
                "line 1, column 4: Nope: the record has no such field; \
                           allowed: Request Response Revision TraceID",
            ),
            (
                "é{{$.Response.code}}",
                "line 1, column 15: code: .Response has",
            ),
            (
                "{{.Request.Host.X}}",
                "line 1, column 17: X: a text has no such field; it has none",
            ),
            (
                "{{.Request.TLS.Cipher}}",
                "line 1, column 16: Cipher: .Request.TLS has",
            ),
            ("{{if .Request.TSL}}x{{end}}", "line 1, column 15: TSL: "),
            (
                "{{if true}}{{else if .Request.TSL}}x{{end}}",
                "line 1, column 31: TSL: ",
            ),
            (
                "{{if true}}{{else}}{{js .Request.TSL}}{{end}}",
                "line 1, column 34: TSL: ",
            ),
            ("{{or (not .Request.TSL) 1}}", "line 1, column 20: TSL: "),
            (
                "{{(.Request.Cookie \"a\").Domain}}",
                "line 1, column 25: Domain: a cookie has",
            ),
            (
                "{{(index .Request.Cookies 0).X}}",
                "line 1, column 30: X: a cookie has",
            ),
            (
                "{{.Request.Cookie}}",
                "line 1, column 12: Cookie takes as arguments a text",
            ),
            (
                "{{.Request.Cookie 1}}",
                "line 1, column 12: Cookie takes as arguments a text",
            ),
            (
                "{{1 | .Request.FormValue}}",
                "line 1, column 16: FormValue takes",
            ),
            (
                "{{.Request.Header.Get.X}}",
                "line 1, column 19: Get takes as arguments a text",
            ),
            (
                "{{.Request.Method \"x\"}}",
                "line 1, column 12: Method takes no arguments",
            ),
            (
                "{{.Request.ProtoAtLeast 1}}",
                "line 1, column 12: ProtoAtLeast takes as \
                                             arguments a whole number and a whole number",
            ),
            (
                "{{.Request}}",
                "line 1, column 3: .Request cannot be printed",
            ),
            ("{{.}}", "line 1, column 3: the record cannot be printed"),
            (
                "{{print 1 .Request}}",
                "line 1, column 3: .Request cannot be printed",
            ),
            ("{{not}}", "line 1, column 3: not takes one argument"),
            ("{{eq 1}}", "line 1, column 3: eq takes at least 2"),
        ] {
            let error = Template::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }
}
