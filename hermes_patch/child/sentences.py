"""Sentences about nothing in particular, in the two languages that matter most here.

The mean of their vectors is the direction that all texts share. It is subtracted from every
vector, so that unrelated texts come out near a cosine of zero and a floor can exist.
Questions belong in: without them a query still shares with every other question that it asks
(session recall@5 .78 against .81). Editing this file changes every vector: run
``make_means`` afterwards and start a new model name.
"""

from __future__ import annotations

STATEMENTS = (
    "The meeting was moved to Thursday afternoon.",
    "I bought some bread and milk on the way home.",
    "The file has been saved and the tests pass now.",
    "She has lived in this town for about ten years.",
    "It rained all morning, but the sun came out later.",
    "You can change that option in the settings menu.",
    "The train was late again, so we took a taxi.",
    "Thanks, that is exactly what I needed.",
    "My brother is learning to play the guitar.",
    "The server was restarted after the last update.",
    "We should write this down before we forget it.",
    "The book is about a family that runs a small shop.",
    "I would rather stay at home this weekend.",
    "Here is a short list of what still has to be done.",
    "The price went up a little since last month.",
    "会议改到星期四下午了。",
    "我下班路上买了点面包和牛奶。",
    "文件已经保存，测试也都通过了。",
    "她在这座城市住了大概十年。",
    "早上一直在下雨，后来出太阳了。",
    "这个选项可以在设置菜单里修改。",
    "火车又晚点了，我们只好打车。",
    "谢谢，这正是我需要的。",
    "我弟弟最近在学弹吉他。",
    "上次更新之后服务器重启过一次。",
    "趁还没忘，我们先把这个记下来。",
    "这本书讲的是一家人开小店的故事。",
    "这个周末我更想待在家里。",
    "下面是还没做完的事情，列了一个清单。",
    "价格比上个月稍微涨了一点。",
)

QUESTIONS = (
    "When did the meeting take place?",
    "What did I buy on the way home?",
    "how to change that option",
    "Where does she live now?",
    "the trip we talked about",
    "Which book did you tell me about?",
    "what was wrong with the server",
    "How much did it cost in the end?",
    "who was going to call back",
    "What did we decide about the plan?",
    "the problem with the file",
    "Why was it so late?",
    "recipe for dinner",
    "What did I say about my family?",
    "a good way to get started",
    "会议是什么时候开的？",
    "我在路上买了什么",
    "那个选项怎么改",
    "她现在住在哪里？",
    "上次说到的那次旅行",
    "你给我推荐过哪本书？",
    "服务器当时出了什么问题",
    "最后一共花了多少钱？",
    "谁说过要回电话",
    "我们关于计划是怎么决定的？",
    "文件的那个问题",
    "为什么那么晚？",
    "晚饭的做法",
    "我提到过家里的什么事？",
    "怎样开始比较好",
)

SENTENCES = STATEMENTS + QUESTIONS
