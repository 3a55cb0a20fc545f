use http::{HeaderMap, HeaderValue, Method, Version};

use super::*;

fn record() -> Record {
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static("a.example"));
    headers.insert("user-agent", HeaderValue::from_static("x\"<y>"));
    headers.append("x-id", HeaderValue::from_static("1"));
    headers.append("x-id", HeaderValue::from_static("2"));
    headers.insert("content-length", HeaderValue::from_static("3"));
    headers.insert(
        "traceparent",
        HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    );
    Record {
        method: Method::POST,
        uri: "/x?y=1".parse().unwrap(),
        version: Version::HTTP_11,
        headers,
        trailers: HeaderMap::new(),
        body_bytes: 3,
        tls: None,
        remote_address: "127.0.0.1:5".to_owned(),
        code: 200,
        size: 5,
        latency_seconds: 0.0065,
    }
}

fn revision() -> RevisionInfo {
    RevisionInfo {
        name: "rev".to_owned(),
        pod_ip: "10.0.0.1".to_owned(),
        ..RevisionInfo::default()
    }
}

fn run(template: &str) -> Result<String, RunError> {
    let written = Template::parse(template)
        .unwrap()
        .run(&record(), &revision())?;
    Ok(written.trim_end_matches('\n').to_owned())
}

#[test]
fn knatives_template_yields_knatives_line() {
    assert_eq!(
        run(crate::observability::REQUEST_LOG_TEMPLATE).unwrap(),
        r#"{"httpRequest": {"requestMethod": "POST", "requestUrl": "/x?y\u003D1", "requestSize": "3", "status": 200, "responseSize": "5", "userAgent": "x\"\u003Cy\u003E", "remoteIp": "127.0.0.1:5", "serverIp": "10.0.0.1", "referer": "", "latency": "0.0065s", "protocol": "HTTP/1.1"}, "traceId": "0af7651916cd43dd8448eb211c80319c"}"#
    );
}

#[test]
fn templates_have_the_results_of_go() {
    for (template, expected) in [
        (r#"{{.Request.Header.Get "x-id"}}"#, "1"),
        (r#"{{.Request.Header.Get "absent"}}."#, "."),
        (r#"{{index .Request.Header "X-Id"}}"#, "[1 2]"),
        (r#"{{index (.Request.Header.Values "X-Id") 1}}"#, "2"),
        (
            r#"{{js (.Request.Header.Get "User-Agent")}}"#,
            r#"x\"\u003Cy\u003E"#,
        ),
        (
            r#"{{.Request.Header.Get "User-Agent" | html}}"#,
            "x&#34;&lt;y&gt;",
        ),
        (r#"{{"a b/c" | urlquery}}"#, "a+b%2Fc"),
        ("a  {{- 1 -}}  b", "a1b"),
        ("a{{/* no */}}b", "ab"),
        ("{{if .Request.Referer}}yes{{else}}no{{end}}", "no"),
        (
            "{{if eq .Response.Code 404}}a{{else if ge .Response.Code 200}}b{{else}}c{{end}}",
            "b",
        ),
        (
            r#"{{if and (eq .Request.Method "POST") (not .Request.Referer)}}x{{end}}"#,
            "x",
        ),
        (r#"{{or .Request.Referer "none"}}"#, "none"),
        (
            "{{.Request.URL}} {{.Request.URL.Path}} {{.Request.URL.RawQuery}}",
            "/x?y=1 /x y=1",
        ),
        ("{{.Request.ProtoAtLeast 1 1}}", "true"),
        (r#"{{len "abc"}}{{print 1 2 "x"}}"#, "31 2x"),
        ("{{$.Request.Host}}", "a.example"),
        ("{{ `raw\\` }}", "raw\\"),
        ("{{-1}}", "-1"),
    ] {
        assert_eq!(run(template).as_deref(), Ok(expected), "{template}");
    }
}

#[test]
fn failures_name_the_field() {
    for (template, field) in [
        ("{{.Request.Cookie \"x\"}}", ".Request.Cookie"),
        ("{{.Request.TLS.Version}}", ".Request.TLS.Version"),
        ("{{(or .Request.TLS 1).Version}}", ".Version"),
        ("{{eq 1 \"1\"}}", "eq"),
        ("{{len 1}}", "len"),
        ("{{index (.Request.Header.Values \"X-Id\") 2}}", "index"),
        ("{{index .Request.Cookies 0}}", "index"),
    ] {
        assert_eq!(run(template).unwrap_err().field, field, "{template}");
    }
}

/// The expected values are the output of Knative's own queue-proxy (Go 1.26) for a GET of `/a/b?x=1&y=2&x=3` with three
/// cookies.
#[test]
fn fields_of_a_request_are_formatted_as_in_go() {
    let mut record = record();
    record.method = Method::GET;
    record.uri = "/a/b?x=1&y=2&x=3".parse().unwrap();
    record.headers = HeaderMap::new();
    record.body_bytes = 0;
    let cookies = HeaderValue::from_static("a=1; b=\"two\"; c");
    record.headers.insert("cookie", cookies);
    record.headers.insert("x-b", HeaderValue::from_static("z"));
    record
        .headers
        .insert("host", HeaderValue::from_static("h.example"));
    for (template, expected) in [
        ("TLS: {{.Request.TLS}}", "TLS: <nil>"),
        ("{{if .Request.TLS}}yes{{else}}no{{end}}", "no"),
        ("{{js .Request.TLS}}", "\\u003Cnil\\u003E"),
        (
            "{{eq .Request.TLS nil}} {{ne .Request.TLS nil}} {{not .Request.TLS}}",
            "true false true",
        ),
        ("{{and .Request.TLS .Request.TLS.ServerName}}", "<nil>"),
        ("{{or .Request.TLS \"none\"}}", "none"),
        (
            "{{.Request.Form}} {{.Request.PostForm}} {{.Request.MultipartForm}}",
            "map[] map[] <nil>",
        ),
        (
            "{{.Request.Form}}|{{.Request.FormValue \"x\"}}|{{.Request.PostFormValue \"x\"}}|{{.Request.Form}}",
            "map[]|1||map[x:[1 3] y:[2]]",
        ),
        (
            "{{eq .Request.Form nil}} {{len .Request.Form}} {{.Request.Form.x}}",
            "true 0 <no value>",
        ),
        (
            "{{.Request.Cookies}} {{len .Request.Cookies}}",
            "[a=1 b=\"two\" c=] 3",
        ),
        (
            "{{.Request.Cookie \"a\"}}|{{(.Request.Cookie \"b\").Value}}|{{(index .Request.Cookies 2).Name}}",
            "a=1|two|c",
        ),
        ("{{.Request.CookiesNamed \"a\"}}", "[a=1]"),
        (
            "{{.Request.URL.Query}} {{.Request.URL.Query.Get \"x\"}} {{index .Request.URL.Query \"x\"}} \
             {{.Request.URL.Query.Has \"y\"}} {{.Request.URL.Query.Encode}}",
            "map[x:[1 3] y:[2]] 1 [1 3] true x=1&x=3&y=2",
        ),
        (
            "{{.Request.URL.Query.x}} {{.Request.URL.Query.Nope}}",
            "[1 3] <no value>",
        ),
        (
            "[{{.Request.Pattern}}] {{.Request.Trailer}} {{.Request.Close}} {{.Request.Body}}",
            "[] map[] false {}",
        ),
        (
            "{{.Request.Header}}",
            "map[Cookie:[a=1; b=\"two\"; c] X-B:[z]]",
        ),
        (
            "{{.Request.Header.Nope}} {{.Request.Header.Values \"q\"}}",
            "<no value> []",
        ),
        (
            "{{.Response}} {{print .Response}}",
            "{200 5 0.0065} &{200 5 0.0065}",
        ),
        ("{{.Revision.Name}}", "rev"),
    ] {
        let text = format!("{template}\n");
        let line = Template::parse(&text).unwrap().run(&record, &revision());
        assert_eq!(line.as_deref(), Ok(&*format!("{expected}\n")), "{template}");
    }
}

#[test]
fn bodies_and_trailers_are_formatted_as_in_go() {
    let mut record = record();
    let line = |record: &Record| {
        let text =
            "{{.Request.Body}} {{.Request.Trailer}} {{.Request.Header}} {{.Request.Close}}\n";
        Template::parse(text)
            .unwrap()
            .run(record, &revision())
            .unwrap()
    };
    record.headers = HeaderMap::new();
    record
        .headers
        .insert("content-length", HeaderValue::from_static("3"));
    let body = format!("&{{{0} {0} {{{{}} {{0 0}}}} 3 {0}}}", go::ADDRESS);
    assert_eq!(
        line(&record),
        format!("{body} map[] map[Content-Length:[3]] false\n")
    );
    record.headers = HeaderMap::new();
    for (name, value) in [
        ("transfer-encoding", "chunked"),
        ("trailer", "x-t, y-u"),
        ("connection", "keep-alive, close"),
    ] {
        record.headers.insert(name, HeaderValue::from_static(value));
    }
    record.trailers.insert("x-t", HeaderValue::from_static("y"));
    assert_eq!(
        line(&record),
        format!("{body} map[X-T:[y] Y-U:[]] map[Connection:[keep-alive, close]] true\n")
    );
    // Without announced trailers there are none.
    record.headers.remove("trailer");
    assert!(line(&record).contains("map[] map[Conn"));
}

#[test]
fn tls_is_formatted_as_in_go() {
    let mut record = record();
    record.tls = Some(std::sync::Arc::new(crate::tls::Negotiated {
        version: 772,
        resumed: false,
        cipher_suite: 4865,
        curve: 0x1d,
        protocol: "h2".to_owned(),
        server_name: "h.example".to_owned(),
        hello_retry: false,
    }));
    let shown = format!(
        "{{772 true false 4865 X25519 h2 true h.example [] [] [] [] [] false false {} 0}}",
        go::ADDRESS
    );
    for (template, expected) in [
        ("{{.Request.TLS}}", shown.clone()),
        ("{{print .Request.TLS}}", format!("&{shown}")),
        ("{{if .Request.TLS}}yes{{end}}", "yes".to_owned()),
        (
            "{{.Request.TLS.Version}} {{.Request.TLS.CurveID}} {{.Request.TLS.ServerName}}",
            "772 X25519 h.example".to_owned(),
        ),
        ("{{eq .Request.TLS nil}}", "false".to_owned()),
    ] {
        let text = format!("{template}\n");
        let line = Template::parse(&text).unwrap().run(&record, &revision());
        assert_eq!(line, Ok(expected + "\n"), "{template}");
    }
}

/// Every member in the check's table has a value of the declared type.
#[test]
fn every_checked_member_exists() {
    use super::super::check::{Kind, MEMBERS};
    let mut record = record();
    record
        .headers
        .insert("cookie", HeaderValue::from_static("x=1"));
    record.tls = Some(std::sync::Arc::default());
    let revision = revision();
    let subject = Subject {
        record: &record,
        revision: &revision,
        is_form_read: &Cell::new(false),
    };
    let value = |kind| match kind {
        Kind::Root => Value::Root,
        Kind::Request => Value::Request,
        Kind::Response => Value::Response,
        Kind::Revision => Value::Revision,
        Kind::Url => Value::Url,
        Kind::Header => Value::Trailers(go::Values::new()),
        Kind::Values => Value::Values(go::Values::new()),
        Kind::Tls => Value::Tls(record.tls.as_ref().unwrap()),
        Kind::Cookie => Value::Cookie(subject.cookies().next().unwrap()),
        Kind::Integer => Value::Integer(1),
        Kind::Text => Value::Text(Cow::Borrowed("x")),
        other => panic!("{other:?} has no members"),
    };
    for member in MEMBERS {
        let arguments: Vec<_> = member.arguments.iter().map(|kind| value(*kind)).collect();
        let of = value(member.of);
        let found = if arguments.is_empty() {
            subject.field(&of, member.name)
        } else {
            subject.method(&of, member.name, &arguments).ok()
        };
        let kind = match found.unwrap_or_else(|| panic!("{}: no value", member.name)) {
            Value::Nil => Kind::Nil,
            Value::Absent => Kind::Any,
            Value::Bool(_) => Kind::Bool,
            Value::Integer(_) => Kind::Integer,
            Value::Float(_) => Kind::Float,
            Value::Text(_) => Kind::Text,
            Value::List(_) => Kind::List,
            Value::Root => Kind::Root,
            Value::Request => Kind::Request,
            Value::Response => Kind::Response,
            Value::Revision => Kind::Revision,
            Value::Url => Kind::Url,
            Value::Headers | Value::Trailers(_) => Kind::Header,
            Value::Values(_) => Kind::Values,
            Value::Tls(_) => Kind::Tls,
            Value::Cookies(_) => Kind::Cookies,
            Value::Cookie(_) => Kind::Cookie,
            Value::Body => Kind::Body,
        };
        assert_eq!(kind, member.kind, "{}", member.name);
    }
}
