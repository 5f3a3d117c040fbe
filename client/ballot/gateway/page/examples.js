// The examples menu: the decisions of the repository's examples, and one of each other kind.

const REFUND = JSON.stringify(
  {
    policy:
      "A refund needs a receipt and a purchase at most 30 days ago. Opened software is never refunded. Store credit may be offered instead of a refund when the receipt is missing.",
    ticket: {
      from: "returning customer",
      bought_days_ago: 12,
      receipt: false,
      item: "headphones",
      message:
        "The left side stopped working after a week. I no longer have the receipt, but it is on my account. Please refund me today or I will dispute the charge.",
    },
  },
  null,
  2,
);

const TOOL_CALL = JSON.stringify(
  {
    task: "Free some disk space on the build machine.",
    tool: "shell",
    arguments: { command: "rm -rf /var/cache/builds/2021-*" },
  },
  null,
  2,
);

export const EXAMPLES = [
  {
    title: "Support route",
    note: "A short text, three queues",
    type: "choice",
    state: "Customer asks to reset a forgotten password and says the reset email never arrived.",
    question: "Which queue should handle this request?",
    options: [
      { id: "account_access", description: "Account access and authentication support." },
      { id: "billing", description: "Billing and payment support." },
      { id: "sales", description: "Sales and product evaluation." },
    ],
  },
  {
    title: "Refund allowed?",
    note: "A policy and a ticket as JSON",
    type: "choice",
    stateIsJson: true,
    state: REFUND,
    question: "Does the policy allow a refund for this ticket?",
    options: [
      { id: "yes", description: "Every condition for a refund is met." },
      { id: "no", description: "A condition for a refund is not met." },
    ],
  },
  {
    title: "Next step",
    note: "The same state, another question: it is decoded once",
    type: "choice",
    stateIsJson: true,
    state: REFUND,
    question: "What should happen next with this ticket?",
    options: [
      { id: "refund", description: "Refund the purchase." },
      { id: "store_credit", description: "Offer store credit." },
      { id: "ask_receipt", description: "Ask for a receipt or the order number." },
      { id: "escalate", description: "Hand over to a supervisor." },
    ],
  },
  {
    title: "Tool guard",
    note: "What an agent wants to run, judged before it does",
    type: "choice",
    stateIsJson: true,
    state: TOOL_CALL,
    question: "May the agent run this tool call without asking?",
    options: [
      { id: "allow", description: "It serves the task and is easy to undo." },
      { id: "ask", description: "It serves the task, but a person should confirm it first." },
      { id: "deny", description: "It goes beyond the task or could do harm." },
    ],
    orders: "2",
  },
  {
    title: "Spam?",
    note: "A yes or no question",
    type: "noul",
    state: "You have WON a holiday for two! Reply with your card number to claim it today.",
    question: "Is this message spam?",
    yes: "Unsolicited advertising or a fraud.",
    no: "A message that the reader expects or wants.",
  },
  {
    title: "Urgency",
    note: "A score on ordered levels",
    type: "score",
    state: "Our whole team has been locked out since this morning and a release is due at noon.",
    question: "How urgent is this ticket?",
    levels: [
      { description: "It can wait." },
      { description: "It needs attention this week." },
      { description: "It needs attention today." },
      { description: "It needs attention within the hour." },
    ],
  },
];
