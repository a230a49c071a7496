//! The messages of a conversation.

use crate::failure::Failure;
use serde_json::{Value, json};
use std::path::Path;

/// Who says something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    const ALL: [(Self, &'static str); 3] =
        [(Self::System, "system"), (Self::User, "user"), (Self::Assistant, "assistant")];

    /// Its name in templates and files.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(role, _)| *role == self).map_or("", |(_, name)| name)
    }
}

/// Messages, oldest first; a system message is the first one.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Conversation {
    messages: Vec<(Role, String)>,
}

impl Conversation {
    /// Adds a message.
    pub fn push(&mut self, role: Role, text: String) {
        self.messages.push((role, text));
    }

    /// Takes the last message back if it is of this role.
    pub fn pop(&mut self, role: Role) -> Option<String> {
        self.messages.pop_if(|(last, _)| *last == role).map(|(_, text)| text)
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|(role, _)| *role == Role::System).map(|(_, text)| text.as_str())
    }

    /// Replaces or removes the system message.
    pub fn set_system(&mut self, text: Option<String>) {
        if self.system().is_some() {
            self.messages.remove(0);
        }
        if let Some(text) = text {
            self.messages.insert(0, (Role::System, text));
        }
    }

    /// Drops everything but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(usize::from(self.system().is_some()));
    }

    /// Drops the oldest message after the system message and what follows it up to the next user message.
    /// False if only the last user message is left.
    pub fn forget_oldest(&mut self) -> bool {
        let start = usize::from(self.system().is_some());
        let next = self.messages.iter().skip(start + 1).position(|(role, _)| *role == Role::User);
        match next {
            Some(next) => {
                self.messages.drain(start..=start + next);
                true
            }
            None => false,
        }
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// As objects with `role` and `content`. With `merge` the system message becomes the beginning of the first
    /// user message, for templates that know no system role.
    pub fn values(&self, merge: bool) -> Vec<Value> {
        let mut system = self.system().filter(|_| merge);
        let skipped = usize::from(system.is_some());
        let messages = self.messages.iter().skip(skipped).map(|(role, text)| {
            let content = match system.filter(|_| *role == Role::User) {
                Some(instructions) => {
                    system = None;
                    format!("{instructions}\n\n{text}")
                }
                None => text.clone(),
            };
            json!({ "role": role.name(), "content": content })
        });
        messages.collect()
    }

    /// Writes the conversation as JSON.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = format!("{:#}\n", json!({ "messages": self.values(false) }));
        crate::files::replace(path, text.as_bytes())
    }

    /// Reads a conversation: what [`Conversation::save`] wrote, or the bare list of messages.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let text = crate::files::read_text(path, crate::files::PROMPT)?;
        Self::parse(&text).map_err(|reason| Failure::Failed(format!("{}: {reason}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let list =
            value.get("messages").unwrap_or(&value).as_array().ok_or("there is no list of messages")?;
        let mut messages = Vec::new();
        for (index, message) in list.iter().enumerate() {
            let text = |key: &str| {
                let text = message.get(key).and_then(Value::as_str);
                text.ok_or_else(|| format!("message {index} has no text called {key}"))
            };
            let name = text("role")?;
            let role = Role::ALL.iter().find(|(_, known)| *known == name).map(|(role, _)| *role);
            let role = role.ok_or_else(|| format!("message {index} has the unknown role {name:?}"))?;
            if role == Role::System && index > 0 {
                return Err(format!("message {index} is of the system but not the first one"));
            }
            messages.push((role, text("content")?.to_string()));
        }
        Ok(Self { messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Conversation {
        let mut conversation = Conversation::default();
        conversation.set_system(Some("be brief".into()));
        for (question, answer) in [("one", "1"), ("two", "2")] {
            conversation.push(Role::User, question.into());
            conversation.push(Role::Assistant, answer.into());
        }
        conversation
    }

    #[test]
    fn system_messages() {
        let mut conversation = example();
        assert_eq!(conversation.system(), Some("be brief"));
        conversation.set_system(Some("be long".into()));
        assert_eq!(conversation.len(), 5);
        let merged = conversation.values(true);
        assert_eq!(merged.len(), 4);
        assert_eq!(merged[0]["content"], "be long\n\none");
        assert_eq!(merged[2]["content"], "two");
        conversation.clear();
        assert_eq!((conversation.len(), conversation.system()), (1, Some("be long")));
        conversation.set_system(None);
        assert_eq!(conversation.len(), 0);
    }

    #[test]
    fn the_oldest_turn_is_forgotten_first() {
        let mut conversation = example();
        conversation.push(Role::User, "three".into());
        assert!(conversation.forget_oldest());
        let left: Vec<_> = conversation.messages.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(left, ["be brief", "two", "2", "three"]);
        assert!(conversation.forget_oldest());
        assert!(!conversation.forget_oldest());
        assert_eq!(conversation.len(), 2);
    }

    #[test]
    fn files_hold_what_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        example().save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), example());
        assert!(Conversation::load(&folder.path().join("none")).is_err());
    }

    #[test]
    fn bad_files_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "EOF"),
            ("7", "no list"),
            ("[7]", "message 0 has no text called role"),
            (r#"[{"role":"user"}]"#, "content"),
            (r#"[{"role":"queen","content":""}]"#, "unknown role \"queen\""),
            (r#"[{"role":"user","content":""},{"role":"system","content":""}]"#, "message 1"),
        ] {
            let error = Conversation::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
